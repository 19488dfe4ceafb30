// SPDX-License-Identifier: Apache-2.0
// Numbers and tables as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::launch {

/// "1,234,567"
std::string with_commas(uint64_t number);

/// "4.58 MiB", "12 B"
std::string readable_bytes(uint64_t bytes);

/// "1 tensor", "3 tensors"
std::string counted(uint64_t number, const std::string& noun);

/// Columns two spaces apart, the first flush left, numbers (the others) flush right. Every row has as many cells.
std::string table_of(const std::vector<std::vector<std::string>>& rows);

}  // namespace accelerate::launch
