//! Where artifacts are kept, as the command line says it: the whole of outputs that were shown in part.
//!
//! Without a word about it that is a folder of the user's own, so that a later command finds what an earlier one
//! referred to.

use std::path::{Path, PathBuf};

use clap::Args;
use thiserror::Error;
use toolwarden::settlement::projection_policy::{PolicyError, ProjectionPolicy};
use toolwarden_tools::effects::blobs::BlobError;
use toolwarden_tools::effects::blobs::folder::FolderBlobs;

use crate::environment::Environment;
use crate::input::{InputError, read_file};

/// Largest projection policy, in bytes.
const POLICY_BYTES_MAX: u64 = 64 * 1024;

/// Where artifacts are.
#[derive(Debug, Args)]
pub(crate) struct ArtifactArgs {
    /// The folder that keeps the whole of outputs that were shown in part [default:
    /// $XDG_STATE_HOME/toolwarden/artifacts, or ~/.local/state/toolwarden/artifacts]
    #[arg(long, value_name = "DIR")]
    pub(crate) artifacts: Option<PathBuf>,
}

/// Why there are no artifacts to work with.
#[derive(Debug, Error)]
pub(crate) enum ArtifactsError {
    /// Nobody said where they are.
    #[error("neither XDG_STATE_HOME nor HOME says where artifacts are; name the folder with --artifacts DIR")]
    Nowhere,
    /// The folder cannot be used.
    #[error("the folder for artifacts cannot be used: {0}")]
    Folder(#[from] BlobError),
    /// The policy cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The policy is none.
    #[error("the projection policy cannot be used: {0}")]
    Policy(#[from] PolicyError),
}

impl ArtifactArgs {
    /// The folder.
    fn folder(&self, environment: &Environment) -> Result<PathBuf, ArtifactsError> {
        let given = self.artifacts.clone();
        given.or_else(|| environment.state_folder().map(|state| state.join("artifacts"))).ok_or(ArtifactsError::Nowhere)
    }

    /// The folder, to keep artifacts in; none when the user's own cannot be used, and nobody asked for it.
    ///
    /// # Errors
    /// [`ArtifactsError`] when a folder was named and cannot be used.
    pub(crate) fn to_keep(&self, environment: &Environment) -> Result<Option<FolderBlobs>, ArtifactsError> {
        match (self.folder(environment), &self.artifacts) {
            (Ok(folder), Some(_)) => Ok(Some(FolderBlobs::open(&folder)?)),
            (Ok(folder), None) => Ok(FolderBlobs::open(&folder)
                .inspect_err(|error| tracing::info!(%error, "artifacts are kept in memory"))
                .ok()),
            (Err(_), _) => Ok(None),
        }
    }

    /// The folder, to read in.
    ///
    /// # Errors
    /// [`ArtifactsError`].
    pub(crate) fn to_read(&self, environment: &Environment) -> Result<FolderBlobs, ArtifactsError> {
        Ok(FolderBlobs::open_for_reading(&self.folder(environment)?)?)
    }
}

/// The projection policy that a word names: a built-in profile, or a JSON file.
///
/// # Errors
/// [`ArtifactsError::Input`] and [`ArtifactsError::Policy`].
pub(crate) fn load_projection(word: &str) -> Result<ProjectionPolicy, ArtifactsError> {
    match ProjectionPolicy::profile(&word.replace('-', "_")) {
        Some(policy) => Ok(policy),
        None => {
            let text = read_file(Path::new(word), "the projection policy", POLICY_BYTES_MAX)?;
            Ok(ProjectionPolicy::from_json(&text)?)
        }
    }
}
