//! The parsers for model requests and responses never panic, and chunks may be split anywhere.
//!
//! The first byte is the length of the chunks; the rest is the body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_llm::{Model, Models, Price, Request, UsageEventFilter, UsageReader};

fuzz_target!(|data: &[u8]| {
    let Some((&first, body)) = data.split_first() else { return };
    let model = Model::new(Price::per_million(u64::MAX, u64::MAX));
    let request = Request::parse(body).unwrap_or_default();
    if let Some(asking) = request.ask_for_usage(body) {
        let asking = Request::parse(&asking).expect("one more member is valid");
        assert!(asking.includes_usage);
        assert_eq!(asking.estimate(&model), request.estimate(&model));
    }
    let size = usize::from(first).max(1);
    let (mut whole, mut chunked) = (UsageEventFilter::default(), UsageEventFilter::default());
    let mut passed: Vec<u8> = body.chunks(size).flat_map(|chunk| chunked.filter(chunk)).collect();
    passed.extend(chunked.finish());
    assert_eq!([whole.filter(body), whole.finish()].concat(), passed);
    let models = Models::new(model).with("known", model);
    models.get(&String::from_utf8_lossy(body));
    for new in [UsageReader::json, UsageReader::sse] {
        let (mut whole, mut chunked) = (new(), new());
        whole.read(body);
        for chunk in body.chunks(size) {
            chunked.read(chunk);
        }
        let usage = whole.usage(&request, &model);
        assert_eq!(chunked.usage(&request, &model), usage);
        assert_eq!(chunked.text_bytes(), whole.text_bytes());
        assert!(usage.reasoning <= usage.output && usage.output <= usage.total());
        model.price().of(&usage);
    }
});
