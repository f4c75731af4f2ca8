//! The parameters of a dispatch against what each node declared of the action: which nodes take them, which of them are
//! secret, and how long the action is meant to take.
//!
//! Pure. Nodes with the same manifest are asked once.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use muster_shared::{
    parameter_schema::{self, Schema},
    wire::{DeclaredHook, Parameters},
};

use crate::gates::Candidate;

/// What was found out about a cohort.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// Parameters that any of the nodes declares `writeOnly`.
    pub(crate) secret: BTreeSet<String>,
    /// Where the parameters differ from a schema, as the first node to refuse them says.
    pub(crate) mismatch: Option<String>,
}

/// What one manifest says of the parameters.
#[derive(Default)]
struct ManifestVerdict {
    secret: BTreeSet<String>,
    mismatch: Option<String>,
    timeout_default_seconds: Option<u32>,
}

/// Asks each candidate's manifest, and notes the answer there.
pub(crate) fn check(candidates: &mut [Candidate], parameters: Option<&Parameters>) -> Checked {
    let none = Parameters::new();
    let parameters = parameters.unwrap_or(&none);
    let mut verdicts: HashMap<Arc<str>, ManifestVerdict> = HashMap::new();
    let mut checked = Checked::default();
    for candidate in candidates {
        let Some(manifest) = &candidate.manifest else {
            continue;
        };
        let verdict = verdicts
            .entry(Arc::clone(manifest))
            .or_insert_with(|| judge(manifest, parameters));
        candidate.takes_parameters = verdict.mismatch.is_none();
        candidate.timeout_default_seconds = verdict.timeout_default_seconds;
        if checked.mismatch.is_none() {
            checked.mismatch.clone_from(&verdict.mismatch);
        }
    }
    checked.secret = verdicts
        .into_values()
        .flat_map(|verdict| verdict.secret)
        .collect();
    checked
}

fn judge(declared: &str, parameters: &Parameters) -> ManifestVerdict {
    // A declaration of an older control is read as one without a manifest; the node checks in any case.
    let Ok(declared) = serde_json::from_str::<DeclaredHook>(declared) else {
        return ManifestVerdict::default();
    };
    let manifest = declared.manifest.unwrap_or_default();
    let timeout_default_seconds = manifest.timeout_default_seconds;
    let Some(document) = manifest.parameters else {
        return ManifestVerdict {
            timeout_default_seconds,
            ..ManifestVerdict::default()
        };
    };
    match Schema::parse(document) {
        Ok(schema) => ManifestVerdict {
            secret: schema.secret().clone(),
            mismatch: schema.complete(parameters).err().map(|err| err.to_string()),
            timeout_default_seconds,
        },
        // Without a schema nobody can say which of them are secret.
        Err(err) => ManifestVerdict {
            secret: parameters.keys().cloned().collect(),
            mismatch: Some(format!("the node declares a schema that is none: {err}")),
            timeout_default_seconds,
        },
    }
}

/// The parameters as they may be shown, and those that may not.
pub(crate) fn split(parameters: &Parameters, secret: &BTreeSet<String>) -> (Parameters, Parameters) {
    let hidden = parameters
        .iter()
        .filter(|(name, _)| secret.contains(*name))
        .map(|(name, value)| (name.clone(), value.clone()));
    (parameter_schema::masked(parameters, secret), hidden.collect())
}
