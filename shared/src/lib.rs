//! What both ends of Muster must agree on.
//!
//! No I/O and no runtime: ids, the invocation status machine, the wire types, the signed envelope, the audit chain, label
//! selectors, the schema of parameters, how findings and failures are told, which drop-ins
//! count. The one exception is [`time::Timestamp::now`],
//! so that no other file has to ask the system.

pub mod access;
pub mod audit;
pub mod causes;
pub mod doctor;
pub mod drop_ins;
pub mod envelope;
pub mod ids;
pub mod labels;
pub mod message_id;
pub mod parameter_schema;
pub mod parameter_text;
#[cfg(feature = "openapi")]
pub mod schema;
pub mod selector;
pub mod status;
pub mod terminal;
pub mod time;
pub mod wire;
