// SPDX-License-Identifier: Apache-2.0
// The names are those of accelerate/utils/fsdp_utils.py.
#include "accelerate/checkpoint/fsdp_files.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/archive/dcp_folder.hpp"
#include "accelerate/archive/members.hpp"
#include "accelerate/checkpoint/dcp_tensors.hpp"
#include "accelerate/checkpoint/python_state.hpp"
#include "accelerate/checkpoint/weights.hpp"

namespace accelerate::checkpoint {
namespace {

namespace fs = std::filesystem;
using archive::DcpFolder;
using archive::DcpTensor;
using archive::DcpValue;
using archive::PickleValue;
using archive::quote_for_terminal;

constexpr int64_t kMaxGroups = 100'000;

fs::path model_folder(const fs::path& checkpoint, int64_t index) {
  return checkpoint / fmt::format("pytorch_model_fsdp_{}", index);
}
fs::path whole_model_file(const fs::path& checkpoint, int64_t index) {
  return checkpoint / (index == 0 ? "pytorch_model_fsdp.bin" : fmt::format("pytorch_model_fsdp_{}.bin", index));
}
fs::path optimizer_folder(const fs::path& checkpoint, int64_t index) {
  return checkpoint / fmt::format("optimizer_{}", index);
}

// Returns the file of rank 0 if Accelerate wrote one file per rank; an empty path otherwise.
fs::path file_of_rank_0(const fs::path& checkpoint, std::string_view stem, int64_t index) {
  std::error_code error;
  // Without DCP the name always has the index. With LOCAL_STATE_DICT the first model's name has none.
  for (const auto& name : {fmt::format("{}_{}_rank0.bin", stem, index), fmt::format("{}_rank0.bin", stem)}) {
    const bool is_of_index = index == 0 || name.find(fmt::format("_{}_", index)) != std::string::npos;
    if (is_of_index && fs::exists(checkpoint / name, error)) return checkpoint / name;
  }
  return {};
}

[[noreturn]] void fail_per_rank(const fs::path& file, std::string_view operation) {
  base::fail(ErrorKind::data, {}, operation,
             "{}: each rank's part is in its own file, which is not read; in Python, load the checkpoint and save it "
             "with SHARDED_STATE_DICT (with DCP) or FULL_STATE_DICT",
             file.string());
}

// Collects the state from "optimizer.state.fc.weight.exp_avg" and "optimizer.param_groups.0.lr".
class OptimizerReader {
 public:
  OptimizerReader(std::shared_ptr<DcpFolder> folder, DcpTensors& dcp)
      : shared_(std::move(folder)), folder_(*shared_), dcp_(dcp) {}

  state::OptimizerState run() {
    for (const DcpValue& value : folder_.metadata().values) {
      if (const auto place = group_option(value.path)) {
        options_[place->first].emplace_back(place->second, folder_.value(value));
      } else if (!is_empty_container(value.path)) {
        refuse(value.name);
      }
    }
    std::map<std::string, std::vector<const DcpTensor*>> states;
    for (const DcpTensor& tensor : folder_.metadata().tensors) {
      if (tensor.path.size() == 4 && tensor.path[0] == "optimizer" && tensor.path[1] == "state") {
        states[tensor.path[2]].push_back(&tensor);
      } else if (const auto place = group_option(tensor.path)) {
        tensor_options_[place->first].emplace_back(place->second, number_in(tensor));
      } else {
        refuse(tensor.name);
      }
    }
    add_groups();
    for (const auto& [parameter, tensors] : states) {
      auto& state = saved_.tensors[positions_.position_of(parameter, folder_.origin())];
      for (const DcpTensor* tensor : tensors) state.emplace_back(tensor->path[3], dcp_.tensor(shared_, *tensor));
    }
    return std::move(saved_);
  }

 private:
  [[noreturn]] void refuse(const std::string& name) const {
    folder_.origin().broken("{} is neither a state of a parameter nor an option of a group", quote_for_terminal(name));
  }

  // Returns the number of the group and the name of the option.
  [[nodiscard]] std::optional<std::pair<int64_t, std::string>> group_option(
      const std::vector<std::string>& path) const {
    if (path.size() != 4 || path[0] != "optimizer" || path[1] != "param_groups") return std::nullopt;
    int64_t group = 0;
    const char* const last = path[2].data() + path[2].size();
    const auto [end, error] = std::from_chars(path[2].data(), last, group);
    if (error != std::errc() || end != last || group < 0 || group >= kMaxGroups) return std::nullopt;
    return std::pair(group, path[3]);
  }

  // PyTorch writes an empty list of groups or an empty dict as one value.
  static bool is_empty_container(const std::vector<std::string>& path) {
    return path.size() == 2 && path[0] == "optimizer" && (path[1] == "state" || path[1] == "param_groups");
  }

  [[nodiscard]] double number_in(const DcpTensor& tensor) const {
    const at::Tensor number = dcp_.tensor(shared_, tensor);
    if (number.numel() != 1 || number.is_complex()) {
      folder_.origin().broken("{} has {} elements, expected one number", quote_for_terminal(tensor.name),
                              number.numel());
    }
    return number.item<double>();
  }

  void add_groups() {
    for (const auto& [number, options] : options_) {
      const auto expected = static_cast<int64_t>(saved_.groups.size());
      if (number != expected) folder_.origin().broken("there is no parameter group {}", expected);
      state::OptimizerGroup group;
      bool has_parameters = false;
      for (const auto& [name, value] : options) {
        if (name == "params") {
          const archive::PickleItems* keys = archive::items_in(value);
          if (keys == nullptr) {
            folder_.origin().broken("the parameters of group {} are {}, expected a list", number, value.kind());
          }
          group.parameters = positions_.add_group(*keys, saved_, folder_.origin());
          has_parameters = true;
        } else if (auto option = option_from(value)) {
          group.options.emplace_back(name, *option);
        }
      }
      if (!has_parameters) folder_.origin().broken("parameter group {} lists no parameters", number);
      for (const auto& [name, value] : tensor_options_[number]) group.options.emplace_back(name, value);
      saved_.groups.push_back(std::move(group));
    }
  }

  std::shared_ptr<DcpFolder> shared_;
  DcpFolder& folder_;
  DcpTensors& dcp_;
  std::map<int64_t, std::vector<std::pair<std::string, PickleValue>>> options_{};  // by group
  std::map<int64_t, std::vector<std::pair<std::string, double>>> tensor_options_{};
  ParameterPositions positions_{};
  state::OptimizerState saved_{};
};

}  // namespace

bool is_dcp_folder(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / archive::kDcpMetadataName, error) || fs::exists(folder / "__0_0.distcp", error);
}

bool has_fsdp_model(const fs::path& checkpoint, int64_t index) {
  std::error_code error;
  return is_dcp_folder(model_folder(checkpoint, index)) || fs::exists(whole_model_file(checkpoint, index), error) ||
         !file_of_rank_0(checkpoint, "pytorch_model_fsdp", index).empty();
}

NamedTensors read_fsdp_model(const fs::path& checkpoint, int64_t index, std::string_view operation, DcpTensors& dcp) {
  std::error_code error;
  if (is_dcp_folder(model_folder(checkpoint, index))) {
    return read_dcp_weights(model_folder(checkpoint, index), operation, dcp);
  }
  const fs::path whole = whole_model_file(checkpoint, index);
  if (fs::exists(whole, error)) return read_weights(whole, operation);
  const fs::path of_rank = file_of_rank_0(checkpoint, "pytorch_model_fsdp", index);
  if (!of_rank.empty()) fail_per_rank(of_rank, operation);
  base::fail(ErrorKind::io, {}, operation, "{} has no weights of model {} that FSDP wrote", checkpoint.string(), index);
}

bool has_fsdp_optimizer(const fs::path& checkpoint, int64_t index) {
  return is_dcp_folder(optimizer_folder(checkpoint, index)) || !file_of_rank_0(checkpoint, "optimizer", index).empty();
}

state::OptimizerState read_fsdp_optimizer(const fs::path& checkpoint, int64_t index, std::string_view operation,
                                          DcpTensors& dcp) {
  const fs::path place = optimizer_folder(checkpoint, index);
  if (!is_dcp_folder(place)) {
    const fs::path of_rank = file_of_rank_0(checkpoint, "optimizer", index);
    if (!of_rank.empty()) fail_per_rank(of_rank, operation);
  }
  return OptimizerReader(std::make_shared<DcpFolder>(place, operation), dcp).run();
}

NamedTensors read_dcp_weights(const fs::path& path, std::string_view operation, DcpTensors& dcp) {
  const auto folder = std::make_shared<DcpFolder>(path, operation);
  const auto& all = folder->metadata().tensors;
  const bool is_wrapped = std::all_of(all.begin(), all.end(), [](const DcpTensor& tensor) {
    return tensor.path.size() > 1 && tensor.path.front() == "model";
  });
  NamedTensors tensors;
  for (const DcpTensor& tensor : all) {
    const auto first = tensor.path.begin() + (is_wrapped ? 1 : 0);
    tensors.emplace_back(fmt::format("{}", fmt::join(first, tensor.path.end(), ".")), dcp.tensor(folder, tensor));
  }
  return tensors;
}

}  // namespace accelerate::checkpoint
