// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/operation_item.hpp"

#include "accelerate/comm/core/collective_fingerprint.hpp"

namespace accelerate::comm {

OperationItem::OperationItem(int64_t item) : outer_(exchange_item_of_thread(item)) {}
OperationItem::~OperationItem() { exchange_item_of_thread(outer_); }

}  // namespace accelerate::comm
