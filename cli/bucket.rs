//! `--workspace s3://…`: a bucket as the workspace, reached as the environment says.
//!
//! The variables are those that other programs for such stores read. Their values are secrets and stay where they are:
//! commands do not get them, and no output shows them.

use std::path::Path;

use clap::Args;
use toolwarden_tools::workspace::object_store::bucket::{BucketAccess, BucketError, BucketPlace};
use toolwarden_tools::workspace::{Workspace, WorkspaceCapabilities, object_store};

use crate::environment::Environment;

/// Where the store of a bucket is.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct BucketArgs {
    /// The address of the store behind s3://; AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL name one as well
    #[arg(long, value_name = "URL")]
    s3_endpoint: Option<String>,
}

impl BucketArgs {
    /// Whether a workspace is named that is a bucket.
    pub(crate) fn is_bucket(workspace: &Path) -> bool {
        workspace.to_str().is_some_and(BucketPlace::is_address)
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`BucketError`].
    pub(crate) fn open(&self, workspace: &Path, environment: &Environment) -> Result<Workspace, BucketError> {
        let place = BucketPlace::parse(&workspace.to_string_lossy())?;
        let mut access = BucketAccess::from_variables(environment.variables(), &place)?;
        if let Some(endpoint) = &self.s3_endpoint {
            access.endpoint = Some(endpoint.clone());
        }
        object_store::open(&place, &access, WorkspaceCapabilities::local_default())
    }
}
