//! What an operator asks for, as far as it can be judged without looking anything up.

use std::num::NonZeroU32;

use muster_shared::{
    ids::ActionName,
    wire::{
        ActionKind, DELIVER_WITHIN_SECONDS_MAX, DispatchRequest, PARAMETERS_BYTES_MAX, Parameters,
        TIMEOUT_SECONDS_MAX,
    },
};
use serde_json::Value;

use super::DispatchError;
use crate::{rollout::Steps, store::Order, target::Target};

pub(super) struct Ask {
    pub(super) action: ActionName,
    pub(super) kind: Option<ActionKind>,
    pub(super) target: Target,
    pub(super) parameters: Option<Parameters>,
    pub(super) timeout_seconds: Option<u32>,
    pub(super) deliver_within_seconds: Option<u32>,
    pub(super) rollout: Option<Steps>,
    pub(super) expect: Option<NonZeroU32>,
    pub(super) max_targets: Option<NonZeroU32>,
}

impl Ask {
    pub(super) fn parse(request: DispatchRequest) -> Result<Self, DispatchError> {
        let target = Target::parse(
            request.selector.as_deref(),
            request.node_id.as_deref(),
            request.all,
        )?;
        let action = request
            .action
            .parse()
            .map_err(|err| DispatchError::BadAction(format!("{err}")))?;
        let timeout_seconds = match request.timeout_seconds {
            None => None,
            Some(asked) => Some(
                u32::try_from(asked)
                    .ok()
                    .filter(|s| (1..=TIMEOUT_SECONDS_MAX).contains(s))
                    .ok_or(DispatchError::BadTimeout(asked))?,
            ),
        };
        let deliver_within_seconds = request
            .deliver_within_seconds
            .map(|asked| {
                u32::try_from(asked)
                    .ok()
                    .filter(|s| (1..=DELIVER_WITHIN_SECONDS_MAX).contains(s))
                    .ok_or(DispatchError::BadDeliverWithin(asked))
            })
            .transpose()?;
        let rollout = request.rollout.as_ref().map(Steps::parse).transpose()?;
        if let Some(parameters) = &request.parameters {
            let bytes = serde_json::to_vec(parameters).map_or(usize::MAX, |json| json.len());
            if bytes > PARAMETERS_BYTES_MAX {
                return Err(DispatchError::ParametersTooLarge(bytes));
            }
            if let Some((name, _)) = parameters.iter().find(|(name, value)| has_nul(name, value)) {
                return Err(DispatchError::ParametersWithNul(name.clone()));
            }
        }
        Ok(Self {
            action,
            kind: request.kind,
            target,
            parameters: request.parameters,
            timeout_seconds,
            deliver_within_seconds,
            rollout,
            expect: request.expect,
            max_targets: request.max_targets,
        })
    }

    pub(super) const fn order(&self) -> Order {
        match self.rollout {
            Some(_) => Order::Name,
            None => Order::Id,
        }
    }
}

/// Whether there is a zero byte anywhere in it. A variable of the environment has none, nor has text in PostgreSQL. How deep
/// it goes is bounded by whoever parsed it.
fn has_nul(name: &str, value: &Value) -> bool {
    name.contains('\0')
        || match value {
            Value::String(text) => text.contains('\0'),
            Value::Array(items) => items.iter().any(|item| has_nul("", item)),
            Value::Object(fields) => fields.iter().any(|(name, value)| has_nul(name, value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> DispatchRequest {
        DispatchRequest {
            action: "ping".into(),
            selector: Some("role=web".into()),
            ..DispatchRequest::default()
        }
    }

    #[test]
    fn timeouts_outside_the_bounds_are_refused_not_clamped() {
        for seconds in [0, -1, i64::from(TIMEOUT_SECONDS_MAX) + 1, i64::MAX, i64::MIN] {
            let ask = Ask::parse(DispatchRequest {
                timeout_seconds: Some(seconds),
                ..request()
            });
            assert!(matches!(ask, Err(DispatchError::BadTimeout(s)) if s == seconds));
        }
        assert_eq!(Ask::parse(request()).ok().unwrap().timeout_seconds, None);
    }

    #[test]
    fn a_time_for_delivery_outside_the_bounds_is_refused_not_clamped() {
        for seconds in [0, -1, i64::from(DELIVER_WITHIN_SECONDS_MAX) + 1, i64::MAX] {
            let ask = Ask::parse(DispatchRequest {
                deliver_within_seconds: Some(seconds),
                ..request()
            });
            assert!(matches!(ask, Err(DispatchError::BadDeliverWithin(s)) if s == seconds));
        }
    }

    #[test]
    fn oversized_parameters_are_refused_by_their_own_size() {
        let mut parameters = Parameters::new();
        parameters.insert("k".into(), "x".repeat(PARAMETERS_BYTES_MAX).into());
        let ask = Ask::parse(DispatchRequest {
            parameters: Some(parameters),
            ..request()
        });
        assert!(matches!(ask, Err(DispatchError::ParametersTooLarge(n)) if n > PARAMETERS_BYTES_MAX));
    }

    #[test]
    fn parameters_with_a_zero_byte_are_refused_wherever_it_is() {
        for text in [
            r#"{"a":"\u0000"}"#,
            r#"{"a":[1,{"b":"x\u0000"}]}"#,
            r#"{"a":{"b\u0000":1}}"#,
            r#"{"a\u0000":1}"#,
        ] {
            let ask = Ask::parse(DispatchRequest {
                parameters: Some(serde_json::from_str(text).unwrap()),
                ..request()
            });
            assert!(
                matches!(ask, Err(DispatchError::ParametersWithNul(name)) if name.starts_with('a')),
                "{text}"
            );
        }
    }
}
