//! A schedule in words.

use tollgate_core::{Micros, Timestamp};

/// Similar requests at the same instant, repeated at equal intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// When, after the schedule's first request.
    pub after: Micros,
    /// The number of the requests' kind.
    pub kind: usize,
    /// The number of the first process that gets them.
    pub replica: usize,
    /// How many processes get as many, from the first on.
    pub replicas: usize,
    /// How many requests arrive at the instant, at each process.
    pub requests: u64,
    /// How many times they arrive.
    pub times: u64,
    /// The interval, if they arrive several times.
    pub every: Micros,
}

/// Groups requests, which are sorted by time.
pub(super) fn bursts(sent: impl Iterator<Item = (Timestamp, usize, usize)>) -> Vec<Burst> {
    let mut bursts: Vec<Burst> = Vec::new();
    let (mut origin, every) = (None, Micros::ZERO);
    for (at, kind, replica) in sent {
        let after = at.since(*origin.get_or_insert(at));
        match bursts.last_mut() {
            Some(last) if (last.after, last.kind, last.replica) == (after, kind, replica) => {
                last.requests += 1;
            }
            _ => {
                let (replicas, requests, times) = (1, 1, 1);
                bursts.push(Burst { after, kind, replica, replicas, requests, times, every });
            }
        }
    }
    bursts.dedup_by(|burst, last| {
        let is_next = (last.after, last.kind, last.requests, last.replica + last.replicas)
            == (burst.after, burst.kind, burst.requests, burst.replica);
        last.replicas += usize::from(is_next);
        is_next
    });
    let mut grouped: Vec<Burst> = Vec::new();
    for burst in bursts {
        if let Some(last) = grouped.last_mut()
            && (last.kind, last.replica, last.replicas, last.requests)
                == (burst.kind, burst.replica, burst.replicas, burst.requests)
        {
            let end = last.after.get() + last.every.get() * (last.times - 1);
            let gap = Micros::new(burst.after.get() - end);
            if last.times == 1 || gap == last.every {
                (last.times, last.every) = (last.times + 1, gap);
                continue;
            }
        }
        grouped.push(burst);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bursts_at_equal_intervals_are_grouped() {
        let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
        let sent = [(5, 0), (5, 0), (6, 0), (8, 0), (10, 0), (10, 1)];
        let seconds = |seconds: u64| Micros::new(seconds * 1_000_000);
        let burst = |after, kind, requests, times, every| Burst {
            after: seconds(after),
            kind,
            replica: 0,
            replicas: 1,
            requests,
            times,
            every: seconds(every),
        };
        let expected = [burst(0, 0, 2, 1, 0), burst(1, 0, 1, 3, 2), burst(5, 1, 1, 1, 0)];
        assert_eq!(bursts(sent.into_iter().map(|(second, kind)| (at(second), kind, 0))), expected);
    }
}
