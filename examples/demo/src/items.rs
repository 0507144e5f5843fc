//! The service itself: items in memory.
//!
//! There are at most [`MAX_ITEMS`] items. Further items are rejected with 507 instead of replacing
//! old items, which another client may still need.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, Path, Query, Request, State};
use axum::http::header::{ALLOW, LOCATION};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Deserializer, Serialize};

use crate::problem::{Body, Problem};

/// The routes under `/items`.
pub(crate) fn router() -> Router {
    Router::new()
        // axum's `MethodFilter` only supports standard methods, so the fallback handles the rest.
        .route("/items", get(list).post(create).fallback(search_or_refuse))
        .route("/items/{id}", get(read).put(replace).patch(change).delete(remove))
        .with_state(Items::default())
}

#[derive(Clone, Debug, Serialize)]
struct Item {
    id: u64,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// The members that a client sets. The service sets the id.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewItem {
    name: String,
    note: Option<String>,
}

/// A merge patch (RFC 7396): absent members are unchanged, and null members are removed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    name: Option<String>,
    #[serde(default, deserialize_with = "present")]
    note: Option<Option<String>>,
}

#[derive(Debug, Deserialize)]
struct Page {
    /// Return only items with a greater id.
    #[serde(default)]
    after: u64,
    #[serde(default = "page_size")]
    limit: usize,
}

#[derive(Debug, Deserialize)]
struct Search {
    q: String,
}

#[derive(Debug, Serialize)]
struct Found {
    items: Vec<Item>,
    total: usize,
}

type Id = Result<Path<u64>, PathRejection>;

async fn list(
    State(items): State<Items>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Found>, Problem> {
    let Query(page) = page.map_err(|error| bad_query(&error))?;
    let shelf = items.lock();
    let following = shelf.items.range(page.after.saturating_add(1)..).map(|(_, item)| item);
    let items = following.take(page.limit.min(MAX_PAGE)).cloned().collect();
    Ok(Json(Found { items, total: shelf.items.len() }))
}

async fn create(
    State(items): State<Items>,
    Body(new): Body<NewItem>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<Item>), Problem> {
    check_name(&new.name)?;
    let mut shelf = items.lock();
    if shelf.items.len() >= MAX_ITEMS {
        let full = format!("There are {MAX_ITEMS} items already: delete one first.");
        return Err(Problem::new(StatusCode::INSUFFICIENT_STORAGE, full));
    }
    shelf.last_id += 1;
    let item = Item { id: shelf.last_id, name: new.name, note: new.note };
    shelf.items.insert(item.id, item.clone());
    let location = [(LOCATION, format!("/items/{}", item.id))];
    Ok((StatusCode::CREATED, location, Json(item)))
}

async fn read(State(items): State<Items>, id: Id) -> Result<Json<Item>, Problem> {
    Ok(Json(items.lock().find(id)?.clone()))
}

/// Replaces an item that exists. The service chooses ids, so PUT does not create items.
async fn replace(
    State(items): State<Items>,
    id: Id,
    Body(new): Body<NewItem>,
) -> Result<Json<Item>, Problem> {
    check_name(&new.name)?;
    let mut shelf = items.lock();
    let item = shelf.find(id)?;
    *item = Item { id: item.id, name: new.name, note: new.note };
    Ok(Json(item.clone()))
}

async fn change(
    State(items): State<Items>,
    id: Id,
    Body(patch): Body<Patch>,
) -> Result<Json<Item>, Problem> {
    patch.name.as_deref().map_or(Ok(()), check_name)?;
    let mut shelf = items.lock();
    let item = shelf.find(id)?;
    if let Some(name) = patch.name {
        item.name = name;
    }
    if let Some(note) = patch.note {
        item.note = note;
    }
    Ok(Json(item.clone()))
}

async fn remove(State(items): State<Items>, id: Id) -> Result<StatusCode, Problem> {
    let mut shelf = items.lock();
    let id = shelf.find(id)?.id;
    shelf.items.remove(&id);
    Ok(StatusCode::NO_CONTENT)
}

/// Handles SEARCH and QUERY, which are the same method under two names. Other methods get 405.
async fn search_or_refuse(State(items): State<Items>, request: Request) -> Response {
    let answer = match request.method().as_str() {
        "SEARCH" | "QUERY" => search(&items, request).await.into_response(),
        _ => Problem::method_not_allowed().into_response(),
    };
    // axum would only list the methods that it supports.
    ([(ALLOW, "GET, HEAD, POST, SEARCH, QUERY")], answer).into_response()
}

/// Finds items by a text in their name or note. The text is in `?q=`, or else in `{"q": …}`.
async fn search(items: &Items, request: Request) -> Result<Json<Found>, Problem> {
    let wanted = if request.uri().query().is_some_and(|query| !query.is_empty()) {
        let query = Query::<Search>::try_from_uri(request.uri());
        query.map_err(|error| bad_query(&error))?.0
    } else {
        Body::<Search>::from_request(request, &()).await?.0
    };
    let wanted = wanted.q.to_lowercase();
    let matches = |text: &str| text.to_lowercase().contains(&wanted);
    let shelf = items.lock();
    let hits = shelf
        .items
        .values()
        .filter(|item| matches(&item.name) || item.note.as_deref().is_some_and(matches));
    let total = hits.clone().count();
    Ok(Json(Found { items: hits.take(MAX_PAGE).cloned().collect(), total }))
}

/// All items. Clones share the same items.
#[derive(Clone, Default)]
struct Items(Arc<Mutex<Shelf>>);

#[derive(Default)]
struct Shelf {
    items: BTreeMap<u64, Item>,
    last_id: u64,
}

impl Items {
    /// Ignores poisoning: no handler panics in the middle of a change, so the items are consistent.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    fn find(&mut self, id: Id) -> Result<&mut Item, Problem> {
        // An id that is not a number matches no item, like id 0.
        let id = id.map_or(0, |Path(id)| id);
        self.items.get_mut(&id).ok_or_else(|| Problem::not_found("There is no such item."))
    }
}

fn check_name(name: &str) -> Result<(), Problem> {
    if name.trim().is_empty() || name.chars().count() > MAX_NAME {
        let detail = format!("`name` must have 1 to {MAX_NAME} characters.");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    Ok(())
}

fn bad_query(error: &QueryRejection) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, error.body_text())
}

/// Distinguishes null from absent: serde only calls this function for members that are present.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(value).map(Some)
}

const fn page_size() -> usize {
    100
}

const MAX_ITEMS: usize = 10_000;
const MAX_NAME: usize = 200;
const MAX_PAGE: usize = 1_000;
