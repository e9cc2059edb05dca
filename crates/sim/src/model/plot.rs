//! Line plots as SVG, enough for results that are read beside their CSV.

use std::fmt::Write;

pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

pub struct Plot {
    pub title: String,
    pub x: String,
    pub y: String,
    pub log_x: bool,
    pub log_y: bool,
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 55.0;
const COLORS: [&str; 8] =
    ["#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f"];

impl Plot {
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| line.points.iter().copied());
        let xs = Axis::over(points().map(|point| point.0), self.log_x, LEFT, WIDTH - RIGHT);
        let ys = Axis::over(points().map(|point| point.1), self.log_y, HEIGHT - BOTTOM, TOP);
        let mut svg = String::new();
        let mut put = |text: String| writeln!(svg, "{text}").expect("a string takes everything");
        put(format!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' \
             width='{WIDTH}' height='{HEIGHT}' font-family='sans-serif' font-size='12'>"
        ));
        put(format!("<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>"));
        put(format!("<text x='{LEFT}' y='22' font-size='15'>{}</text>", escaped(&self.title)));
        for at in ys.ticks() {
            let y = ys.place(at);
            put(format!(
                "<line x1='{LEFT}' x2='{}' y1='{y:.1}' y2='{y:.1}' stroke='#ddd'/>",
                WIDTH - RIGHT
            ));
            put(format!(
                "<text x='{}' y='{:.1}' text-anchor='end'>{}</text>",
                LEFT - 6.0,
                y + 4.0,
                label(at)
            ));
        }
        for at in xs.ticks() {
            let x = xs.place(at);
            put(format!(
                "<line x1='{x:.1}' x2='{x:.1}' y1='{TOP}' y2='{}' stroke='#eee'/>",
                HEIGHT - BOTTOM
            ));
            put(format!(
                "<text x='{x:.1}' y='{}' text-anchor='middle'>{}</text>",
                HEIGHT - BOTTOM + 16.0,
                label(at)
            ));
        }
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        put(format!(
            "<text x='{}' y='{}' text-anchor='middle'>{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 15.0,
            escaped(&self.x)
        ));
        put(format!(
            "<text transform='translate(18 {middle}) rotate(-90)' text-anchor='middle'>{}</text>",
            escaped(&self.y)
        ));
        for (index, line) in self.lines.iter().enumerate() {
            let color = COLORS[index % COLORS.len()];
            let path: Vec<String> = line
                .points
                .iter()
                .filter(|(x, y)| xs.shows(*x) && ys.shows(*y))
                .map(|(x, y)| format!("{:.1},{:.1}", xs.place(*x), ys.place(*y)))
                .collect();
            put(format!(
                "<polyline points='{}' fill='none' stroke='{color}' stroke-width='1.6'/>",
                path.join(" ")
            ));
            let y = TOP + 14.0 + 18.0 * index as f64;
            let x = WIDTH - RIGHT + 12.0;
            put(format!(
                "<line x1='{x}' x2='{}' y1='{y}' y2='{y}' stroke='{color}' stroke-width='3'/>",
                x + 18.0
            ));
            put(format!("<text x='{}' y='{}'>{}</text>", x + 24.0, y + 4.0, escaped(&line.name)));
        }
        put("</svg>".to_owned());
        svg
    }
}

struct Axis {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, log: bool, from: f64, to: f64) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite() && (!log || *value > 0.0)) {
            low = low.min(value);
            high = high.max(value);
        }
        if !low.is_finite() {
            (low, high) = (1.0, 2.0);
        }
        if !log {
            low = low.min(0.0);
        }
        if high <= low {
            high = low + 1.0;
        }
        Axis { low, high, log, from, to }
    }

    fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    fn place(&self, value: f64) -> f64 {
        let share = if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let inside = |at: &f64| (self.low..=self.high).contains(at);
            let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
            return decades
                .flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)))
                .filter(inside)
                .collect();
        }
        let rough = (self.high - self.low) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step =
            step.into_iter().find(|step| *step >= rough).expect("ten times the power is enough");
        let first = (self.low / step).ceil() as i64;
        (first..).map(|index| index as f64 * step).take_while(|at| *at <= self.high).collect()
    }
}

fn label(value: f64) -> String {
    match value.abs() {
        big if big >= 1e6 => format!("{}M", value / 1e6),
        big if big >= 1e4 => format!("{}k", value / 1e3),
        _ => format!("{}", (value * 1e4).round() / 1e4),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_touches_the_frame_and_text_is_escaped() {
        let line = Line { name: "a<b".to_owned(), points: vec![(0.0, 0.0), (10.0, 5.0)] };
        let plot = Plot {
            title: "t".to_owned(),
            x: "x".to_owned(),
            y: "y".to_owned(),
            log_x: false,
            log_y: false,
            lines: vec![line],
        };
        let svg = plot.svg();
        assert!(svg.contains("points='70.0,365.0 530.0,40.0'"), "{svg}");
        assert!(svg.contains("a&lt;b"));
    }
}
