// SPDX-License-Identifier: Apache-2.0
// Lists of PMIx attributes with memory owned here: libpmix copies its arguments.
#pragma once

#include <pmix_common.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::launch {

class PmixInfos {
 public:
  PmixInfos() = default;
  PmixInfos(const PmixInfos&) = delete;
  PmixInfos& operator=(const PmixInfos&) = delete;

  void flag(const char* key, bool value) { add(key, PMIX_BOOL).data.flag = value; }
  void uint16(const char* key, uint16_t value) { add(key, PMIX_UINT16).data.uint16 = value; }
  void uint32(const char* key, uint32_t value) { add(key, PMIX_UINT32).data.uint32 = value; }
  void rank(const char* key, uint32_t value) { add(key, PMIX_PROC_RANK).data.rank = value; }
  void string(const char* key, const std::string& value) { add(key, PMIX_STRING).data.string = keep(value); }
  /// \param value  Result of PMIx_generate_regex or PMIx_generate_ppn in readable form.
  void regex(const char* key, const std::string& value) {
    pmix_value_t& entry = add(key, PMIX_REGEX);
    entry.data.bo.bytes = keep(value);
    entry.data.bo.size = value.size() + 1;
  }
  /// A nested list, filled by the caller; valid during the lifetime of this object.
  PmixInfos& array(const char* key) {
    pending_.push_back(infos_.size());
    add(key, PMIX_DATA_ARRAY);
    return nested_.emplace_back();
  }

  /// Call after the last addition.
  pmix_info_t* data() {
    arrays_.resize(nested_.size());
    for (size_t i = 0; i < nested_.size(); ++i) {
      arrays_[i] = {.type = PMIX_INFO, .size = nested_[i].size(), .array = nested_[i].data()};
      infos_[pending_[i]].value.data.darray = &arrays_[i];
    }
    return infos_.data();
  }
  [[nodiscard]] size_t size() const { return infos_.size(); }

 private:
  pmix_value_t& add(std::string_view key, pmix_data_type_t type) {
    pmix_info_t& info = infos_.emplace_back();  // zero-initialized
    key.copy(info.key, PMIX_MAX_KEYLEN);
    info.value.type = type;
    return info.value;
  }
  char* keep(const std::string& value) { return strings_.emplace_back(value).data(); }

  std::vector<pmix_info_t> infos_;
  std::deque<std::string> strings_;
  std::deque<PmixInfos> nested_;
  std::vector<size_t> pending_;  // indices of the arrays in infos_
  std::vector<pmix_data_array_t> arrays_;
};

}  // namespace accelerate::launch
