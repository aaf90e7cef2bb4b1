//! No room: at every step of storing, the result settles all the same, says so, and refers to nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use toolwarden::settlement::proof::ProofError;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::blobs::folder::FolderBlobs;
use toolwarden_tools::effects::blobs::{BlobError, BlobStat, Blobs, NewBlob, OpenBlob};

use super::evidence::{evidence_of, repeat};
use crate::support::world::World;

/// Blobs in a folder whose disk is full at one step.
#[derive(Debug, Clone)]
struct FullAt {
    blobs: FolderBlobs,
    left: Arc<AtomicUsize>,
}

impl FullAt {
    fn step(&self) -> Result<(), BlobError> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(BlobError::of_io("write", "here", std::io::ErrorKind::StorageFull.into())),
            _ => Ok(()),
        }
    }
}

impl Blobs for FullAt {
    fn begin(&self) -> Result<Box<dyn NewBlob>, BlobError> {
        self.step()?;
        Ok(Box::new(NewFullAt { of: self.clone(), blob: self.blobs.begin()? }))
    }

    fn open(&self, name: &Digest) -> Result<Box<dyn OpenBlob>, BlobError> {
        self.blobs.open(name)
    }

    fn remove(&self, name: &Digest) -> Result<(), BlobError> {
        self.blobs.remove(name)
    }

    fn list(&self) -> Result<Vec<BlobStat>, BlobError> {
        self.blobs.list()
    }
}

struct NewFullAt {
    of: FullAt,
    blob: Box<dyn NewBlob>,
}

impl NewBlob for NewFullAt {
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.of.step()?;
        self.blob.write(bytes)
    }

    fn sync(&mut self) -> Result<(), BlobError> {
        self.of.step()?;
        self.blob.sync()
    }

    fn publish(self: Box<Self>, name: &Digest) -> Result<bool, BlobError> {
        self.of.step()?;
        self.blob.publish(name)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_at_any_step_leaves_an_honest_result() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = FolderBlobs::open(folder.path()).unwrap();
    let left = Arc::new(AtomicUsize::new(0));
    let full = FullAt { blobs: blobs.clone(), left: Arc::clone(&left) };
    let world = World::with(move |builder| builder.artifact_blobs(Arc::new(full))).await;
    let session = world.session().tool(repeat("say").shared()).open().await.unwrap();
    let whole: String = (1..=30_000).map(|n| format!("{n}\n")).collect();
    // A text in memory takes four steps; a command's output, 169 KB in pieces of a block, a few more.
    for fails_at in 0..8 {
        for tool in ["say", "bash"] {
            left.store(fails_at, Ordering::Relaxed);
            let arguments = match tool {
                "say" => json!({"text": whole, "times": 1}),
                _ => json!({"command": "seq 1 30000"}),
            };
            let result = session.tool(tool, arguments).await.unwrap();
            assert!(result.is_success());
            let evidence = evidence_of(&result);
            assert_eq!(evidence["original_bytes"], whole.len(), "{tool}: the figures are right all the same");
            assert_eq!(evidence["content_digest"], Digest::of(whole.as_bytes()).as_str());
            if fails_at >= 4 && tool == "say" || result.metadata.contains_key("artifact") {
                assert!(session.verify_evidence(&result).await.unwrap().holds());
                blobs.remove(&Digest::of(whole.as_bytes())).unwrap();
                continue;
            }
            assert_ne!(evidence["loss_mode"], "none");
            assert_eq!(evidence["content_ref"], format!("lost:{}", Digest::of(whole.as_bytes())));
            assert_eq!(result.metadata["artifact_error"]["kind"], "full", "{tool} {fails_at}");
            assert!(result.output.ends_with("\n[the whole output is not kept: full]\n"));
            assert!(!result.metadata.contains_key("artifact") && !result.output.contains("a3s://"));
            assert!(matches!(session.verify_evidence(&result).await, Err(ProofError::Lost)));
            assert!(blobs.list().unwrap().is_empty());
            assert_eq!(std::fs::read_dir(folder.path().join("new")).unwrap().count(), 0, "nothing half-written");
        }
    }
    world.end().await;
}

// What a real disk says: a file that may not grow any more.
#[test]
fn the_systems_own_words_for_no_room_are_understood() {
    use nix::libc;
    for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
        let error = BlobError::of_io("write", "here", std::io::Error::from_raw_os_error(errno));
        assert_eq!(error.kind(), "full", "{error}");
        assert!(error.to_string().contains("free some space"));
    }
    let error = BlobError::of_io("write", "here", std::io::Error::from_raw_os_error(libc::EACCES));
    assert_eq!(error.kind(), "io");
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_fails_the_build() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let built = toolwarden::Runtime::builder().artifact_folder(folder.path().join("file/x")).build().await;
    let error = built.err().unwrap().to_string();
    assert!(error.contains("folder for artifacts"), "{error}");
}
