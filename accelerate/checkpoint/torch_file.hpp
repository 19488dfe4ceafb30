// SPDX-License-Identifier: Apache-2.0
// Files of torch.save, and of torch::save: values and tensors in a zip, without Python.
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

/// Puts together what torch.load(weights_only=True) reads.
class TorchFileWriter {
 public:
  explicit TorchFileWriter(std::string_view operation) : operation_(operation) {}

  /// The tensor as a value of the file; its bytes are written once, however often it comes. They are taken when write()
  /// runs.
  [[nodiscard]] archive::PickleValue tensor(const at::Tensor& tensor, std::string_view name);
  void write(archive::Sink& sink, const archive::PickleValue& root) const;

 private:
  std::string operation_;
  std::vector<at::Tensor> storages_;
  std::map<const void*, size_t> known_;
};

/// A file of torch.save (1.6 and later), mapped. What it holds is values: nothing of it is run.
class TorchFile {
 public:
  /// Throws Error: io where it cannot be opened, data as archive::TorchArchive does.
  TorchFile(const std::filesystem::path& path, std::string_view operation);

  [[nodiscard]] const archive::PickleValue& root() const { return archive_.root(); }
  [[nodiscard]] const archive::Origin& origin() const { return archive_.origin(); }
  [[nodiscard]] static bool is_tensor(const archive::PickleValue& value) {
    return archive::TorchArchive::is_tensor(value);
  }
  /// A tensor or Parameter of the file. Views of one storage share it here too. It lies in the mapped file, as
  /// SafetensorsFile's do. Python attributes of a tensor are ignored. Conj and neg bits are set as torch.load sets
  /// them: `resolve_conj()` and `resolve_neg()` write the values into memory.
  /// path   on which it was found, for errors
  /// Throws Error (data) where it is none, does not fit into its storage, or has a dtype that LibTorch lacks.
  [[nodiscard]] at::Tensor tensor(const archive::PickleValue& value, const std::string& path) const;
  /// The tensors of a dict of them, by their names, in its order (a state_dict()); of a module that LibTorch's
  /// torch::save() wrote, or TorchScript, those of its submodules too: "first.weight". Throws Error (data) where it is
  /// something else.
  [[nodiscard]] NamedTensors tensors() const;
  /// What can be a tensor of all that a dict holds, by the keys and positions on the way to it: of
  /// {"model": net.state_dict(), "epoch": 3, "rates": [0.1, 0.2]} "model.fc.weight", "epoch" (no dimension) and "rates"
  /// (one). None is passed over; so is what is no number, and integers beyond 64 bits. Of a module as tensors().
  /// says   a line of the log names what was passed over; None is not worth one
  /// Throws Error (data) where it is no dict, a key is no name, or two values have one name.
  [[nodiscard]] NamedTensors all_as_tensors(bool says = true) const;
  /// All tensors in dicts within dicts, by the keys on the way to them: "state.0.exp_avg".
  [[nodiscard]] NamedTensors tensors_by_path() const;

 private:
  void add_by_path(const archive::PickleEntries& entries, const std::string& prefix, NamedTensors& list) const;
  /// Of the dict that it is. Throws Error (data) where it is none.
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

// Values of Python's, for those who put a file together.
[[nodiscard]] archive::PickleValue py_dict(archive::PickleEntries entries);
[[nodiscard]] archive::PickleValue py_list(archive::PickleItems items);
[[nodiscard]] archive::PickleValue py_tuple(archive::PickleItems items);
/// What Python makes by calling module.name(arguments), then filled with state.
[[nodiscard]] archive::PickleValue py_object(std::string module, std::string name, archive::PickleItems arguments,
                                             archive::PickleValue state = {});

}  // namespace accelerate::checkpoint
