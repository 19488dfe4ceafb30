// SPDX-License-Identifier: Apache-2.0
// A table row is enough to register a backend, and the conformance cases pass for it.
#include "tests/comm/store_backend/store_backend.hpp"

#include "accelerate/env/settings.hpp"
#include "tests/comm/collectives_support.hpp"
#include "tests/comm/connected_threads.hpp"

namespace {

/// Runs ranks as threads, which connect as processes do.
void on_every_stored_rank(const std::function<void(const Group&)>& check) {
  accelerate::comm::add_backend(store_backend::row());
  for (const int64_t ranks : {1, 2, 3}) testing::on_connected_threads(ranks, "store", check);
}

}  // namespace

#define COLLECTIVES_CASE(name) TEST_CASE("store: " name)
#define ON_EVERY_RANK on_every_stored_rank
#include "tests/comm/collectives_cases.hpp"

TEST_CASE("an external backend needs only its row in the table") {
  on_every_stored_rank([](const Group& group) { CHECK(group.backend() == "store"); });
  CHECK(accelerate::env::resolve_settings({.backend = "store"}, {}, {}).backend == "store");
  CHECK(accelerate::env::resolve_settings({}, {{"ACCELERATE_BACKEND", "store"}}, {}).backend == "store");
}
