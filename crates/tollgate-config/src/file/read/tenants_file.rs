//! Files with tenants, and single tenants in JSON.

use std::path::Path;
use std::rc::Rc;

use tollgate::policy::Algorithm;

use super::identity;
use super::policy::{self, QuotaKeys};
use super::quotas;
use crate::code;
use crate::file::format;
use crate::file::tables::{TenantOrUnlimited, TenantsFile};
use crate::files::{FileError, MOST_BYTES_OF_A_LIST, read_up_to, text_of, wrong};
use crate::plan::{TenantQuota, TenantRules, TenantSource, TenantTable, TenantsPlan};
use crate::yaml::parse;
use crate::yaml::place::{Place, join};
use crate::yaml::problem::{Checked, Problems, Reported};
use crate::yaml::tree::Value;
use crate::yaml::typed::{Either, Input, Text as _, ValueType as _};

/// The tenants in a file, which must fit these rules.
///
/// # Errors
/// The file cannot be read, or has these problems.
pub fn tenants(file: &Path, rules: &TenantRules) -> Result<TenantTable, Vec<FileError>> {
    read_tenants(file, rules, true)
}

/// Like [`tenants`], with the problems in words for a log. They name lines, but no tenants.
///
/// # Errors
/// The file's problems.
pub fn tenants_logged(file: &Path, rules: &TenantRules) -> Result<TenantTable, String> {
    read_tenants(file, rules, false).map_err(|errors| in_words(&errors))
}

fn in_words(errors: &[FileError]) -> String {
    let errors = errors.iter().map(|it| format!("{}; {}", it.what, it.cure));
    errors.collect::<Vec<_>>().join("\n")
}

fn read_tenants(
    file: &Path,
    rules: &TenantRules,
    shows_names: bool,
) -> Result<TenantTable, Vec<FileError>> {
    let text = read_up_to(file, MOST_BYTES_OF_A_LIST).and_then(|bytes| text_of(file, bytes));
    let text = text.map_err(|error| vec![error])?;
    let problems = Rc::new(Problems::default());
    table(&text, rules, &problems).map_err(|_| {
        let lines = problems.take();
        let shown = lines.iter().take(MOST_PROBLEMS).map(|it| {
            let (line, _) = it.place.position(&text);
            let path = it.place.path.as_str();
            let name = path.strip_prefix("tenants.").unwrap_or_default();
            let (name, what) = match shows_names {
                true if !name.is_empty() => (format!(", `{name}`"), it.what.clone()),
                true => (String::new(), it.what.clone()),
                // Such as "`acme` is defined twice".
                false => {
                    let named = format!("`{}`", path.strip_prefix("tenants.").unwrap_or(path));
                    (String::new(), it.what.replace(&named, "`…`"))
                }
            };
            let what = format!("{}: line {line}{name}: {what}", file.display());
            wrong(file, it.code, what, &it.cure)
        });
        let mut shown: Vec<_> = shown.collect();
        if let (Some(last), more @ 1..) =
            (shown.last_mut(), lines.len().saturating_sub(MOST_PROBLEMS))
        {
            last.what = format!("{} (and at least {more} more problems)", last.what);
        }
        shown
    })
}

/// The tenants that commands know: those in a file. Returns `None` for other sources.
///
/// # Errors
/// The file's problems in words.
pub fn known_tenants(plan: &TenantsPlan) -> Result<Option<TenantTable>, String> {
    let TenantSource::File(file) = &plan.source else { return Ok(None) };
    tenants(file, &plan.rules).map(Some).map_err(|errors| in_words(&errors))
}

/// Reads a tenant's numbers, for example from JSON. The error names the first problem and its cure.
pub fn tenant(text: &str, rules: &TenantRules) -> Result<TenantQuota, String> {
    let problems = Rc::new(Problems::default());
    let root = parse::parse_first(text, &problems).flatten();
    let quota =
        root.ok_or(Reported).and_then(|root| tenant_of(Input::root(&root, &problems), rules));
    // An unknown key may be misspelled, so the other keys are not used without it.
    let quota = quota.and_then(|it| if problems.has_errors() { Err(Reported) } else { Ok(it) });
    quota.map_err(|_| {
        let first = problems.take().into_iter().next();
        first.map_or_else(|| "it is empty".to_owned(), |it| format!("{}; {}", it.what, it.cure))
    })
}

/// Enough to see what is wrong with a file that a program writes.
const MOST_PROBLEMS: usize = 10;

/// Reads a file with tenants, and reports its problems.
fn table(text: &str, rules: &TenantRules, problems: &Rc<Problems>) -> Checked<TenantTable> {
    let root = parse::parse_data(text, MOST_VALUES, problems).ok_or(Reported)?;
    let Some(root) = root else {
        return Err(problems.error(code::EMPTY_FILE, Place::START, "the file is empty", CURE));
    };
    TenantsFile::read(Input::root(&root, problems))?.tenants.get()?;
    let pairs = match root.get(TENANTS).map(|tenants| &tenants.value) {
        Some(Value::Map(pairs)) => &pairs[..],
        _ => &[],
    };
    let mut table = TenantTable::with_capacity(pairs.len());
    for pair in pairs {
        let path = join(TENANTS, &pair.key);
        let input = Input::at(&pair.node, &path, problems);
        if let Err(cure) = format::TenantName::parse(&pair.key) {
            input.location().error(code::INVALID_VALUE, "the name is not valid", cure);
            continue;
        }
        if let Ok(quota) = tenant_of(input, rules) {
            table.insert(pair.key.as_str().into(), quota);
        }
    }
    if problems.has_errors() { Err(Reported) } else { Ok(table) }
}

const TENANTS: &str = "tenants";
const CURE: &str = "write `tenants: {acme: {limit: 5000, windowSeconds: 60}}`";

/// Enough for about 400 000 tenants.
const MOST_VALUES: usize = 2_000_000;

fn tenant_of(input: Input<'_>, rules: &TenantRules) -> Checked<TenantQuota> {
    let tenant = match TenantOrUnlimited::read(input)? {
        Either::One(()) => return Ok(TenantQuota::Unlimited),
        Either::Other(tenant) => tenant,
    };
    if tenant.tier.is_set() {
        let Some(tiers) = &rules.tiers else {
            let cure = "write `limit` and `windowSeconds`";
            return Err(tenant.tier.name().error(
                code::INVALID_VALUE,
                "only clients have tiers",
                cure,
            ));
        };
        let tier = identity::tier(&tenant.tier, tiers)?;
        return tier.map(TenantQuota::Tier).ok_or(Reported);
    }
    if !tenant.limit.is_set() && !tenant.info.has_unknown {
        let cure = "add `limit: …`, units per window, or `tier: …`";
        return Err(tenant.info.location.error(code::NO_QUOTA, "`limit` is missing", cure));
    }
    let quotas = quotas::of_section(tenant.quota(), &tenant.also, rules.algorithm)?;
    if quotas.len() > rules.most {
        return Err(tenant.also.name().error(
            code::NO_BASE_QUOTA,
            format!("{} quotas at the same time are more than `client` has", quotas.len()),
            "add as many quotas to `client.also`, for tenants without their own numbers",
        ));
    }
    for (number, (keys, quota)) in quotas.iter().enumerate() {
        for base in rules.bases.iter().filter(|base| base.number == number) {
            let policy = base.policy_of(*quota).map_err(|error| policy::refused(&error, *keys))?;
            if policy.capacity() < base.cost {
                return Err(too_small(&policy, base.cost, *keys));
            }
        }
    }
    Ok(TenantQuota::Quotas(quotas.into_iter().map(|(_, quota)| quota).collect()))
}

fn too_small(policy: &tollgate::Policy, cost: u64, keys: QuotaKeys<'_>) -> Reported {
    let is_bucket = policy.algorithm().is_some_and(Algorithm::is_bucket);
    let key = if is_bucket && keys.window.burst.is_set() { "burst" } else { "limit" };
    keys.amount.error(
        code::COST_ABOVE_CAPACITY,
        format!(
            "policy `{}` would grant at most {} units at the same time, but a request costs {cost}",
            policy.name().escape_debug(),
            policy.capacity()
        ),
        format!("raise `{key}`, or lower the request's cost with `costs`"),
    )
}
