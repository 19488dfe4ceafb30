// SPDX-License-Identifier: Apache-2.0
// Formats numbers and tables for users.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::launch {

/// Returns "1,234,567".
std::string with_commas(uint64_t number);

/// Returns "4.58 MiB" or "12 B".
std::string readable_bytes(uint64_t bytes);

/// Returns "1 tensor" or "3 tensors".
std::string counted(uint64_t number, const std::string& noun);

/// Columns are two spaces apart; the first is left-aligned, the others (numbers) are right-aligned. All rows must have
/// the same number of cells.
std::string table_of(const std::vector<std::vector<std::string>>& rows);

}  // namespace accelerate::launch
