use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn heavy_hitters_are_found_within_error(
        bound in 1..12_usize,
        stream in prop::collection::vec(0..40_u32, 0..600),
    ) {
        let mut summary = Summary::new(bound);
        let mut truth: HashMap<u32, u64> = HashMap::new();
        for key in &stream {
            summary.count(*key);
            *truth.entry(*key).or_default() += 1;
        }
        let found: HashMap<_, _> = summary.iter().map(|(k, n, e)| (*k, (n, e))).collect();
        prop_assert!(found.len() <= bound);
        for (key, (count, error)) in &found {
            prop_assert!((count - error..=*count).contains(&truth[key]), "{key}");
        }
        for (key, count) in truth {
            let is_heavy = count * bound as u64 > stream.len() as u64;
            prop_assert!(!is_heavy || found.contains_key(&key), "{key}: {count}");
        }
    }
}

fn key(n: u32) -> Key {
    Key::new(n.to_be_bytes())
}

#[test]
fn key_floods_do_not_hide_heavy_hitters() {
    let now = Instant::now();
    let mut top = Top::new(now);
    for n in 0..100_000 {
        top.count(key(n), SubjectKind::Ip, now);
        if n % 50 == 0 {
            top.count(key(u32::MAX), SubjectKind::User, now);
        }
    }
    assert_eq!(top.current.counts.len(), SUBJECTS);
    let first = &sum(top.read(now), 3)[0];
    assert_eq!((&first.key, first.kind), (&key(u32::MAX), SubjectKind::User));
    assert!((first.count - first.error..=first.count).contains(&2_000), "{first:?}");
}

#[test]
fn old_denials_are_forgotten() {
    let now = Instant::now();
    let mut top = Top::new(now);
    let counts = |top: &mut Top, now| -> Vec<_> {
        sum(top.read(now), 9).iter().map(|denied| denied.count).collect()
    };
    top.count(key(1), SubjectKind::Ip, now);
    top.count(key(1), SubjectKind::Ip, now + SPAN / 2);
    top.count(key(1), SubjectKind::Ip, now + SPAN);
    assert_eq!(counts(&mut top, now + SPAN), [3]);
    assert_eq!(counts(&mut top, now + 2 * SPAN), [1]);
    assert_eq!(counts(&mut top, now + 3 * SPAN), [0; 0]);
    top.count(key(2), SubjectKind::Ip, now + 3 * SPAN);
    assert_eq!(counts(&mut top, now + 9 * SPAN), [0; 0]);
}
