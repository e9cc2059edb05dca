//! What a browser loads, and by which rules it shows it. Nothing comes from elsewhere, and nothing is built.

/// A file of the page.
#[derive(Debug)]
pub struct Asset {
    pub path: &'static str,
    pub content_type: &'static str,
    pub bytes: &'static [u8],
}

/// All that a browser may load.
pub static ASSETS: [Asset; 5] = [
    Asset {
        path: "/",
        content_type: "text/html; charset=utf-8",
        bytes: include_bytes!("../assets/page.html"),
    },
    Asset {
        path: "/page.css",
        content_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../assets/page.css"),
    },
    Asset {
        path: "/page.js",
        content_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../assets/page.js"),
    },
    Asset {
        path: "/uplot.css",
        content_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../assets/uplot/uPlot.min.css"),
    },
    Asset {
        path: "/uplot.js",
        content_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../assets/uplot/uPlot.iife.min.js"),
    },
];

/// With each of them: what is loaded is from here, what is asked is asked here, and no other page shows this one inside of itself.
pub const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    // A newer program has newer ones.
    ("cache-control", "no-cache"),
];

/// Of a stream of frames.
pub const STREAM_HEADERS: [(&str, &str); 4] = [
    ("content-type", "text/event-stream"),
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
];

pub fn asset(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the whole page, as it is loaded.
    const BYTES_MAX: usize = 250 << 10;

    #[test]
    fn the_whole_page_is_small_and_asks_nobody_else() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.bytes.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes}");
        for asset in &ASSETS {
            let text = std::str::from_utf8(asset.bytes).expect("it is text");
            let places = text.match_indices("http").filter(|(at, _)| text[*at..].contains("://"));
            for (at, _) in places {
                let place: String = text[at..].chars().take(40).collect();
                let is_named = ["http://www.w3.org/", "https://github.com/leeoniya/uPlot"]
                    .iter()
                    .any(|name| place.starts_with(name));
                assert!(is_named || !place.contains("://"), "{}: {place}", asset.path);
            }
        }
    }

    /// The policy forbids scripts and styles inside of the page; a text that comes from a cluster is never taken for markup.
    #[test]
    fn nothing_becomes_markup() {
        let html = std::str::from_utf8(asset("/").expect("there is a page").bytes).expect("text");
        for forbidden in ["<style", " style=", " onclick=", "javascript:"] {
            assert!(!html.contains(forbidden), "{forbidden}");
        }
        assert_eq!(html.matches("<script").count(), html.matches("<script src=").count() + 1);
        assert!(html.contains("<script type=\"module\" src=\"/page.js\"></script>"));
        let script = asset("/page.js").expect("there is a script").bytes;
        let script = std::str::from_utf8(script).expect("text");
        for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
        {
            assert!(!script.contains(forbidden), "{forbidden}");
        }
    }
}
