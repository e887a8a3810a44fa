use crate::bootstrap::unique_id::UniqueId;
use crate::config::Config;
use crate::error::Result;
pub(super) fn id(_config: &Config) -> Result<Option<UniqueId>> {
    Ok(None)
}
