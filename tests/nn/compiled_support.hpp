// SPDX-License-Identifier: Apache-2.0
// Packages that tests/nn/compiled_packages.py exports, and edited copies of them.
#pragma once

#include "tests/testing.hpp"
//
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "accelerate/archive/sink.hpp"
#include "accelerate/archive/zip.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/nn/compiled_module.hpp"
#include "tests/build_folder.hpp"
#include "tests/refusal.hpp"
#include "tests/temporary_folder.hpp"

namespace compiled_testing {

using accelerate::nn::CompiledModule;
using accelerate::nn::CompiledOptions;
using accelerate::nn::CompiledPackage;

inline constexpr CompiledOptions kTrusted{.trusted = true};
/// Absolute and relative, with the largest expected value as the unit of the latter.
inline constexpr double kTolerance = 1e-10;

inline std::string package(const std::string& name) {
  return testing::build_folder() + "/compiled_packages/" + name + ".pt2";
}

inline CompiledModule compiled_mlp() { return CompiledModule(package("mlp"), kTrusted); }

/// Text of an error about a package.
inline std::string error_of(const std::string& name, const std::string& text) {
  return "CompiledModule: " + package(name) + ": " + text;
}

/// Lines that are logged during the call, including those that were logged before.
inline std::vector<std::string> lines_logged_by(const std::function<void()>& call) {
  std::vector<std::string> lines;
  accelerate::base::reset_log_once();
  const auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  call();
  accelerate::base::set_log_handler(before);
  return lines;
}

/// Batches and results of eager PyTorch for a package.
class Expected {
 public:
  explicit Expected(const std::string& name) {
    const std::string bytes = testing::text_of(testing::build_folder() + "/compiled_packages/" + name + ".pt");
    REQUIRE_FALSE(bytes.empty());
    dict_ = torch::pickle_load({bytes.begin(), bytes.end()}).toGenericDict();
  }
  [[nodiscard]] at::Tensor tensor(const std::string& key) const { return dict_.at(key).toTensor(); }
  [[nodiscard]] at::Tensor batch(const std::string& key, int64_t i) const {
    return dict_.at(key).toList().get(static_cast<size_t>(i)).toTensor();
  }
  [[nodiscard]] std::map<std::string, at::Tensor> tensors(const std::string& key) const {
    std::map<std::string, at::Tensor> found;
    for (const auto& item : dict_.at(key).toGenericDict()) found[item.key().toStringRef()] = item.value().toTensor();
    return found;
  }
  [[nodiscard]] std::vector<std::string> names(const std::string& key) const {
    std::vector<std::string> found;
    for (const c10::IValue& item : dict_.at(key).toListRef()) found.push_back(item.toStringRef());
    return found;
  }

 private:
  c10::Dict<c10::IValue, c10::IValue> dict_{c10::AnyType::get(), c10::AnyType::get()};
};

inline double difference(const at::Tensor& seen, const at::Tensor& expected) {
  REQUIRE(seen.sizes() == expected.sizes());
  return (seen.detach().to(torch::kDouble) - expected.to(torch::kDouble)).abs().max().item<double>();
}

inline void write(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Writes a copy of a package with an edited record and valid checksums.
inline void write_edited(const std::string& name, const std::string& path,
                         const std::function<void(nlohmann::json&)>& edit) {
  const std::string file = testing::text_of(package(name));
  accelerate::archive::StringSink sink;
  accelerate::archive::ZipWriter writer(sink);
  for (const auto& member : accelerate::archive::read_zip(file, {.path = name})) {
    std::string bytes(accelerate::archive::member_bytes(file, member));
    if (member.name.ends_with("/extra/accelerate.json")) {
      auto record = nlohmann::json::parse(bytes);
      edit(record);
      bytes = record.dump();
    }
    writer.add(member.name, bytes);
  }
  writer.finish();
  write(path, sink.text());
}

}  // namespace compiled_testing
