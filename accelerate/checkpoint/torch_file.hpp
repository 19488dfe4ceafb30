// SPDX-License-Identifier: Apache-2.0
// Files of torch.save and torch::save(): values and tensors in a ZIP file, without Python.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/archive/pickle_value.hpp"
#include "accelerate/archive/sink.hpp"
#include "accelerate/archive/torch_file.hpp"
#include "accelerate/checkpoint/tensors.hpp"

namespace accelerate::checkpoint {

/// Assembles a file for torch.load(weights_only=True).
class TorchFileWriter {
 public:
  explicit TorchFileWriter(std::string_view operation) : operation_(operation) {}

  /// Adds a tensor as a value of the file. Its bytes are written once, even if it is repeated, and are read by write().
  [[nodiscard]] archive::PickleValue tensor(const at::Tensor& tensor, std::string_view name);
  /// \param provide  Returns the values of tensors that are placeholders.
  void write(archive::Sink& sink, const archive::PickleValue& root, const ProvideValues& provide = {}) const;
  /// Returns the placeholders in the order in which write() needs their values.
  [[nodiscard]] std::vector<at::Tensor> placeholders() const;

 private:
  std::string operation_;
  std::vector<at::Tensor> storages_;
  std::map<const void*, size_t> known_;
};

/// A mapped file of torch.save (1.6 and later). Its content is read as values and never executed.
class TorchFile {
 public:
  /// \throws Error (io) if the file cannot be opened; Error (data) as archive::TorchArchive does.
  TorchFile(const std::filesystem::path& path, std::string_view operation);

  [[nodiscard]] const archive::PickleValue& root() const { return archive_.root(); }
  [[nodiscard]] const archive::Origin& origin() const { return archive_.origin(); }
  [[nodiscard]] static bool is_tensor(const archive::PickleValue& value) {
    return archive::TorchArchive::is_tensor(value);
  }
  /// Returns a tensor or Parameter of the file. Views of one storage share memory. Like SafetensorsFile's tensors, it
  /// refers to the mapped file. Python attributes of a tensor are ignored. Conj and neg bits are set as torch.load sets
  /// them: `resolve_conj()` and `resolve_neg()` write the values into memory.
  /// \param path  Path of the value for errors.
  /// \throws Error (data) if it is not a tensor, does not fit into its storage, or has a dtype that LibTorch lacks.
  [[nodiscard]] at::Tensor tensor(const archive::PickleValue& value, const std::string& path) const;
  /// Returns the tensors of a dict of tensors by name, in order (a state_dict()). For a module written by torch::save()
  /// or TorchScript, includes submodules: "first.weight". \throws Error (data) for other content.
  [[nodiscard]] NamedTensors tensors() const;
  /// Returns everything in a dict that can be a tensor, by the keys and positions of its path: for {"model":
  /// net.state_dict(), "epoch": 3, "rates": [0.1, 0.2]} the entries "model.fc.weight", "epoch" (no dimension) and
  /// "rates" (one). None, non-numeric values and integers beyond 64 bits are skipped. A module is read as by tensors().
  /// \param logs_skipped  If true, skipped entries other than None are named in a log line.
  /// \throws Error (data) if the value is not a dict, a key is not a name, or two values have the same name.
  [[nodiscard]] NamedTensors all_as_tensors(bool logs_skipped = true) const;
  /// Returns all tensors in nested dicts, by the keys of their paths: "state.0.exp_avg".
  [[nodiscard]] NamedTensors tensors_by_path() const;

 private:
  void add_by_path(const archive::PickleEntries& entries, const std::string& prefix, NamedTensors& list) const;
  /// Entries of the dict. \throws Error (data) if the value is not a dict.
  [[nodiscard]] const archive::PickleEntries& entries() const;
  struct Found;
  void add_all(const archive::PickleEntries& entries, const std::string& prefix, Found& found) const;
  void add_value(const archive::PickleValue& value, const std::string& path, Found& found) const;
  void add_module(const archive::PickleEntries& members, const std::string& prefix, NamedTensors& list) const;
  [[nodiscard]] at::Tensor storage(const archive::TorchTensor& of) const;

  std::shared_ptr<archive::MappedFile> file_;
  archive::TorchArchive archive_;
  mutable std::map<std::string, at::Tensor> storages_;
};

// Python values, for code that assembles a file.
[[nodiscard]] archive::PickleValue py_dict(archive::PickleEntries entries);
[[nodiscard]] archive::PickleValue py_list(archive::PickleItems items);
[[nodiscard]] archive::PickleValue py_tuple(archive::PickleItems items);
/// Represents the object that Python creates by calling module.name(arguments) and then setting its state.
[[nodiscard]] archive::PickleValue py_object(std::string module, std::string name, archive::PickleItems arguments,
                                             archive::PickleValue state = {});

}  // namespace accelerate::checkpoint
