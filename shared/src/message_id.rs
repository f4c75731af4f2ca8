//! What journald knows the few events by that somebody may want to be woken for: `journalctl MESSAGE_ID=…`. The packages bring
//! a catalog that explains each of them (`packaging/catalog`, `journalctl --catalog`). An id is never given to another event.

/// An action ended on a node, whatever became of it.
pub const ACTION_ENDED: &str = "ef410cf6c1fd4bdabcbdb9f091204e86";
/// A hook of this machine is not the one that was pinned.
pub const HOOK_CHANGED: &str = "d0161c4f5bae451c975a91deb34d3bc4";
/// What came by the event stream was not to be trusted, or too old.
pub const EVENT_REFUSED: &str = "e112dc5875314d2ba0d163572eb97de4";
/// Control asked for what the admin of the node forbids.
pub const POLICY_REFUSED: &str = "ee663d887c764f33b75f18f28798618e";
/// A node told control of a hook that is not the one that was pinned.
pub const HOOK_DIFFERS: &str = "5729e8b8a291497893b135b53330a3bc";
/// What had to be on record is not.
pub const AUDIT_NOT_WRITTEN: &str = "744f3471e76343b4adee020dab4a6e22";
