//! What a person knows better than a curve: never below so many servers at some hours.

use std::fmt;

/// `6 from 08:00`, `6 from 08:00 to 20:00`, `6 from 22:00 to 06:00 on mon-fri`. Hours and days are UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub servers: usize,
    /// Minutes of the day; the end is not in it. Where it is not later, the rule goes on into the next day.
    from: u16,
    to: u16,
    /// By day on which it begins, from Monday.
    days: [bool; 7],
}

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const MINUTES: u64 = 1_440;
/// 1970 began on a Thursday.
const FIRST_DAY: u64 = 3;

/// What every refusal says.
const FORM: &str =
    "a rule is like `6 from 08:00`, `6 from 08:00 to 20:00` or `6 from 22:00 to 06:00 on mon-fri`";

impl Rule {
    /// The error is for the operator.
    pub fn parse(text: &str) -> Result<Rule, String> {
        let wrong = |what: &str| format!("{text:?}: {what}: {FORM}");
        let words: Vec<&str> = text.split_whitespace().collect();
        let (servers, rest) = match words.as_slice() {
            [servers, "from", from, rest @ ..] => ((*servers, *from), rest),
            _ => return Err(wrong("no rule")),
        };
        let count = servers.0.parse().ok().filter(|count| (1..=10_000).contains(count));
        let count = count.ok_or_else(|| wrong("how many servers"))?;
        let from = time(servers.1).filter(|from| u64::from(*from) < MINUTES);
        let from = from.ok_or_else(|| wrong("from when"))?;
        let (to, rest) = match rest {
            ["to", to, rest @ ..] => (time(to).ok_or_else(|| wrong("until when"))?, rest),
            rest => (MINUTES as u16, rest),
        };
        let days = match rest {
            [] => [true; 7],
            ["on", days] => days_of(days).ok_or_else(|| wrong("on which days"))?,
            _ => return Err(wrong("what comes last")),
        };
        Ok(Rule { servers: count, from, to, days })
    }

    /// Whether it holds in that minute since 1970.
    pub fn holds(&self, minute: u64) -> bool {
        let (day, at) = (minute / MINUTES + FIRST_DAY, (minute % MINUTES) as u16);
        let begins_on = |day: u64| self.days[(day % 7) as usize];
        if self.from < self.to {
            return begins_on(day) && (self.from..self.to).contains(&at);
        }
        (begins_on(day) && self.from <= at) || (begins_on(day + 6) && at < self.to)
    }

    /// The most that any of them wants in that minute.
    pub fn least(rules: &[Rule], minute: u64) -> Option<&Rule> {
        rules.iter().filter(|rule| rule.holds(minute)).max_by_key(|rule| rule.servers)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
        write!(out, "{} from {}", self.servers, clock(self.from))?;
        if u64::from(self.to) != MINUTES {
            write!(out, " to {}", clock(self.to))?;
        }
        if self.days == [true; 7] {
            return Ok(());
        }
        let named = DAYS.iter().zip(self.days).filter(|(_, on)| *on).map(|(name, _)| *name);
        write!(out, " on {}", named.collect::<Vec<_>>().join(","))
    }
}

/// Minutes of the day; 24:00 is its end.
fn time(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| text.parse::<u16>().ok().filter(|_| text.len() == 2);
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let at = 60 * hours + minutes;
    (hours <= 24 && minutes < 60 && u64::from(at) <= MINUTES).then_some(at)
}

fn days_of(text: &str) -> Option<[bool; 7]> {
    let day = |name: &str| DAYS.iter().position(|day| *day == name);
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        let length = (last + 7 - first) % 7;
        (first..=first + length).for_each(|day| days[day % 7] = true);
    }
    Some(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the week that begins on Monday, 5 January 1970.
    fn minute(day: u64, hour: u64) -> u64 {
        (4 + day) * MINUTES + 60 * hour
    }

    fn hours(text: &str, day: u64) -> Vec<u64> {
        let rule = Rule::parse(text).expect("a rule");
        (0..24).filter(|hour| rule.holds(minute(day, *hour))).collect()
    }

    #[test]
    fn rules_hold_at_their_hours() {
        assert_eq!(hours("6 from 20:00", 0), [20, 21, 22, 23]);
        assert_eq!(hours("6 from 08:00 to 11:00", 6), [8, 9, 10]);
        assert_eq!(hours("6 from 08:00 to 24:00 on tue", 1).len(), 16);
        assert_eq!(hours("6 from 08:00 to 11:00 on mon-fri", 5), [0; 0]);
        assert_eq!(hours("6 from 22:00 to 02:00 on fri", 4), [22, 23]);
        assert_eq!(hours("6 from 22:00 to 02:00 on fri", 5), [0, 1]);
        assert_eq!(hours("6 from 22:00 to 02:00 on fri", 6), [0; 0]);
        assert_eq!(hours("6 from 00:00 to 24:00 on sat-mon,wed", 6).len(), 24);
        assert_eq!(hours("6 from 00:00 to 24:00 on sat-mon,wed", 3).len(), 0);
    }

    #[test]
    fn the_most_of_several_counts() {
        let rules = ["3 from 00:00", "6 from 08:00 to 20:00"]
            .map(|text| Rule::parse(text).expect("a rule"));
        let least = |hour| Rule::least(&rules, minute(0, hour)).map(|rule| rule.servers);
        assert_eq!((least(7), least(8), least(20)), (Some(3), Some(6), Some(3)));
        assert_eq!(Rule::least(&rules[1..], minute(0, 7)), None);
    }

    #[test]
    fn a_rule_is_told_as_it_is_read() {
        for text in
            ["6 from 08:00", "6 from 08:00 to 20:00", "2 from 22:00 to 06:30 on mon,tue,sun"]
        {
            assert_eq!(Rule::parse(text).expect("a rule").to_string(), text);
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_with_the_form() {
        for text in [
            "",
            "6",
            "six from 08:00",
            "0 from 08:00",
            "6 from 8:00",
            "6 from 24:00",
            "6 from 08:60",
            "6 from 08:00 to",
            "6 from 08:00 to 25:00",
            "6 from 08:00 on",
            "6 from 08:00 on monday",
            "6 from 08:00 to 09:00 on mon-",
            "6 from 08:00 or so",
            "6 to 08:00",
        ] {
            let refused = Rule::parse(text).expect_err(text);
            assert!(refused.contains("a rule is like"), "{refused}");
        }
    }
}
