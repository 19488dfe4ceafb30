// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/operation_item.hpp"

#include <utility>

namespace accelerate::comm {
namespace {

thread_local int64_t current_item = -1;

}  // namespace

OperationItem::OperationItem(int64_t item) : outer_(std::exchange(current_item, item)) {}
OperationItem::~OperationItem() { current_item = outer_; }
int64_t OperationItem::current() { return current_item; }

}  // namespace accelerate::comm
