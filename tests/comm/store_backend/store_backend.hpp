// SPDX-License-Identifier: Apache-2.0
// A backend outside the library, as a user or a vendor would write one: a folder and a table row.
#pragma once

#include "accelerate/comm/core/backend_table.hpp"

namespace store_backend {

/// A backend that sends all data through the job's store: slow and simple.
const accelerate::comm::BackendRow& row();

}  // namespace store_backend
