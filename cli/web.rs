//! `--allow-origin`, `--proxy`, `--no-proxy`: which way tools reach the web.

use clap::Args;
use thiserror::Error;
use toolwarden::embedding::RuntimeBuilder;
use toolwarden_tools::effects::http::proxy::{HttpProxy, ProxyError};
use toolwarden_tools::web::ssrf::Origin;

use crate::environment::Environment;

/// What commands that call tools take about the web.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WebArgs {
    /// An origin that tools may ask although it is private, such as http://127.0.0.1:8080; may be given again
    #[arg(long, value_name = "ORIGIN", value_parser = parse_origin)]
    pub(crate) allow_origin: Vec<Origin>,

    /// The proxy that tools ask the web through [default: HTTPS_PROXY or HTTP_PROXY of the environment]
    #[arg(long, value_name = "URL", value_parser = parse_proxy, conflicts_with = "no_proxy")]
    pub(crate) proxy: Option<HttpProxy>,

    /// Ask the web directly, whatever the environment says
    #[arg(long)]
    pub(crate) no_proxy: bool,
}

/// The proxy that the environment names cannot be used.
#[derive(Debug, Error)]
#[error("{variable}: {error}; correct it, or give --proxy URL or --no-proxy")]
pub(crate) struct EnvironmentProxyError {
    variable: &'static str,
    error: ProxyError,
}

impl WebArgs {
    /// Tells a runtime the way.
    ///
    /// # Errors
    /// [`EnvironmentProxyError`].
    pub(crate) fn apply(
        self,
        builder: RuntimeBuilder,
        environment: &Environment,
    ) -> Result<RuntimeBuilder, EnvironmentProxyError> {
        let builder = self.allow_origin.into_iter().fold(builder, RuntimeBuilder::allow_origin);
        let named = match (self.proxy, environment.proxy()) {
            (Some(proxy), _) => Some(proxy),
            (None, Some((variable, text))) if !self.no_proxy => {
                Some(HttpProxy::parse(text).map_err(|error| EnvironmentProxyError { variable, error })?)
            }
            _ => None,
        };
        Ok(match named {
            Some(proxy) => builder.proxy(proxy),
            None => builder,
        })
    }
}

fn parse_origin(text: &str) -> Result<Origin, String> {
    Origin::parse(text).map_err(|error| error.to_string())
}

fn parse_proxy(text: &str) -> Result<HttpProxy, String> {
    HttpProxy::parse(text).map_err(|error| error.to_string())
}
