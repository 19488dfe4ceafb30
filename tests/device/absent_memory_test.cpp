// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/absent_memory.hpp"

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "tests/testing.hpp"

using accelerate::device::is_view;
using accelerate::device::needs_values;

namespace {

const c10::FunctionSchema& schema_of(const std::string& name, const std::string& overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name).c_str(), overload.c_str()).schema();
}

}  // namespace

TEST_CASE("views never copy") {
  const at::Tensor x = torch::arange(24.0).view({4, 6}).t();
  const std::vector<at::Tensor> views{x.t(),          x.transpose(0, 1),   x.permute({1, 0}), x.t().view({24}),
                                      x.select(0, 1), x.expand({2, 6, 4}), x.narrow(0, 1, 2), x.slice(0, 1, 3)};
  for (const at::Tensor& view : views) CHECK(view.is_alias_of(x));
  for (const char* name : {"t", "permute", "view", "narrow", "expand"}) CHECK(is_view(schema_of(name)));
  CHECK(is_view(schema_of("transpose", "int")));
  CHECK(is_view(schema_of("select", "int")));
  CHECK(is_view(schema_of("slice", "Tensor")));
}

TEST_CASE("an operator that may copy is no view, although it needs no values itself") {
  for (const char* name : {"reshape", "contiguous"}) {
    CHECK_FALSE(is_view(schema_of(name)));
    CHECK_FALSE(needs_values(schema_of(name)));
  }
  CHECK_FALSE(is_view(schema_of("flatten", "using_ints")));
  CHECK_FALSE(is_view(schema_of("to", "dtype")));
  CHECK_FALSE(is_view(schema_of("narrow", "Tensor")));
  CHECK_FALSE(is_view(schema_of("clone")));
  CHECK(needs_values(schema_of("clone")));
  CHECK_FALSE(needs_values(schema_of("empty_like")));
  CHECK(needs_values(schema_of("add", "Tensor")));
}
