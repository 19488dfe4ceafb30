// SPDX-License-Identifier: Apache-2.0
// The format is that of torch/serialization.py: <name>/data.pkl, <name>/data/<key>, <name>/byteorder, <name>/version.
#include "accelerate/checkpoint/torch_file.hpp"

#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "accelerate/archive/members.hpp"
#include "accelerate/archive/pickle.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/checkpoint/mapped_tensor.hpp"

namespace accelerate::checkpoint {

using archive::PickleDict;
using archive::PickleEntries;
using archive::PickleGlobal;
using archive::PickleItems;
using archive::PickleList;
using archive::PickleObject;
using archive::PicklePersistent;
using archive::PickleTuple;
using archive::PickleValue;

namespace {

constexpr std::string_view kFolderInZip = "archive/";

constexpr size_t kMaxNamed = 20;               // number of named skipped entries: a vocabulary may have 100,000 texts
constexpr size_t kMaxNames = size_t{1} << 27;  // in bytes: names grow with depth

std::optional<c10::Scalar> plain_number(const PickleValue& value) {
  if (const auto* flag = value.as<bool>()) return c10::Scalar(*flag);
  if (const auto* integer = value.as<int64_t>()) return c10::Scalar(*integer);
  if (const auto* number = value.as<double>()) return c10::Scalar(*number);
  return std::nullopt;
}

// Returns the numbers in the dtype that represents all of them, like torch.tensor(), except that floats have 64 bits.
// Undefined if an item is not a number.
at::Tensor tensor_of_numbers(const PickleItems& items) {
  auto type = items.empty() ? c10::ScalarType::Double : c10::ScalarType::Bool;
  for (const PickleValue& item : items) {
    const auto number = plain_number(item);
    if (!number) return {};
    type = c10::promoteTypes(type, number->type());
  }
  at::Tensor tensor = at::empty({static_cast<int64_t>(items.size())}, type);
  const auto fill = [&](auto* to) {
    for (const PickleValue& item : items) *to++ = plain_number(item)->to<std::remove_pointer_t<decltype(to)>>();
  };
  if (type == c10::ScalarType::Bool) {
    fill(tensor.mutable_data_ptr<bool>());
  } else if (type == c10::ScalarType::Long) {
    fill(tensor.mutable_data_ptr<int64_t>());
  } else {
    fill(tensor.mutable_data_ptr<double>());
  }
  return tensor;
}

PickleValue size_tuple(c10::IntArrayRef numbers) {
  PickleItems items;
  for (const int64_t number : numbers) items.emplace_back(number);
  return py_tuple(std::move(items));
}

}  // namespace

PickleValue py_dict(PickleEntries entries) {
  PickleDict dict;
  *dict.entries = std::move(entries);
  return dict;
}
PickleValue py_list(PickleItems items) {
  PickleList list;
  *list.items = std::move(items);
  return list;
}
PickleValue py_tuple(PickleItems items) {
  PickleTuple tuple;
  *tuple.items = std::move(items);
  return tuple;
}
PickleValue py_object(std::string module, std::string name, PickleItems arguments, PickleValue state) {
  auto parts = std::make_shared<PickleObject::Parts>();
  parts->global = {std::move(module), std::move(name)};
  parts->arguments = std::move(arguments);
  parts->state = std::move(state);
  return PickleObject{std::move(parts)};
}

PickleValue TorchFileWriter::tensor(const at::Tensor& tensor, std::string_view name) {
  const auto names = tensor.defined() ? names_of(tensor.scalar_type()) : std::nullopt;
  if (!names || names->storage.empty()) {
    base::fail(
        ErrorKind::usage, {}, operation_, "{} is {}, which torch.load does not read from such a file", name,
        tensor.defined() ? fmt::format("of dtype {}", c10::toString(tensor.scalar_type())) : "an undefined tensor");
  }
  if (tensor.layout() != c10::kStrided) std::ignore = as_written(tensor, name, operation_);
  const auto [known, is_new] = known_.try_emplace(tensor.unsafeGetTensorImpl(), storages_.size());
  if (is_new) storages_.push_back(tensor);
  PicklePersistent storage;
  *storage.id = {std::string("storage"), PickleGlobal{"torch", std::string(names->storage)},
                 std::to_string(known->second), std::string("cpu"), tensor.numel()};
  std::vector<int64_t> strides(static_cast<size_t>(tensor.dim()));  // row-major, as written
  int64_t step = 1;
  for (size_t i = strides.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(tensor.size(static_cast<int64_t>(i)), 1);
  }
  return py_object("torch._utils", "_rebuild_tensor_v2",
                   {storage, int64_t{0}, size_tuple(tensor.sizes()), size_tuple(strides), false,
                    py_object("collections", "OrderedDict", {})});
}

std::vector<at::Tensor> TorchFileWriter::placeholders() const {
  std::vector<at::Tensor> list;
  std::ranges::copy_if(storages_, std::back_inserter(list), [](const at::Tensor& tensor) { return tensor.is_meta(); });
  return list;
}

void TorchFileWriter::write(archive::Sink& sink, const PickleValue& root, const ProvideValues& provide) const {
  archive::ZipWriter zip(sink);
  const std::string folder(kFolderInZip);
  zip.add(folder + "data.pkl", archive::pickle(root));
  zip.add(folder + "byteorder", "little");
  for (size_t i = 0; i < storages_.size(); ++i) {
    const at::Tensor& storage = storages_[i];
    const at::Tensor tensor = as_written(storage.is_meta() ? provide(storage) : storage, "a tensor", operation_);
    zip.add(fmt::format("{}data/{}", folder, i), tensor_bytes(tensor));
  }
  zip.add(folder + "version", "3\n");
  zip.finish();
}

TorchFile::TorchFile(const std::filesystem::path& path, std::string_view operation)
    : file_(std::make_shared<archive::MappedFile>(path, operation)),
      archive_(file_->text(), {.path = path.string(), .operation = std::string(operation)}) {}

at::Tensor TorchFile::storage(const archive::TorchTensor& of) const {
  const auto known = storages_.find(of.storage + "/" + of.dtype);
  if (known != storages_.end()) return known->second;
  const auto dtype = dtype_of_safetensors(of.dtype);
  if (!dtype)
    origin().broken("the tensor {} is of dtype {}, which LibTorch lacks", archive::quote_for_terminal(of.path),
                    of.dtype);
  const auto elements = static_cast<int64_t>((of.end - of.begin) / (of.bits / 8));
  return storages_.emplace(of.storage + "/" + of.dtype, mapped_tensor(file_, of.begin, {elements}, *dtype))
      .first->second;
}

at::Tensor TorchFile::tensor(const PickleValue& value, const std::string& path) const {
  const archive::TorchTensor found = archive_.tensor(value, path);
  const std::vector<int64_t> sizes(found.shape.begin(), found.shape.end());
  const std::vector<int64_t> strides(found.stride.begin(), found.stride.end());
  const auto offset = found.elements == 0 ? 0 : static_cast<int64_t>(found.offset);
  at::Tensor tensor = storage(found).as_strided(sizes, strides, offset);
  if (found.is_conj) tensor = at::_conj(tensor);
  if (found.is_neg) tensor = at::_neg_view(tensor);
  return tensor;
}

void TorchFile::add_module(const PickleEntries& members, const std::string& prefix, NamedTensors& list) const {
  for (const auto& [key, value] : members) {
    const auto* name = key.as<std::string>();
    if (name == nullptr) origin().broken("a tensor's name is {}, expected a text", key.kind());
    const std::string path = prefix + *name;
    if (is_tensor(value)) {
      list.emplace_back(path, tensor(value, path));
    } else if (const auto* inner = archive::TorchArchive::members_of_module(value)) {
      add_module(*inner, path + ".", list);
    }
  }
}

NamedTensors TorchFile::tensors() const {
  NamedTensors list;
  if (const auto* members = archive::TorchArchive::members_of_module(root())) {
    add_module(*members, "", list);
    return list;
  }
  for (const auto& [key, value] : entries()) {
    const auto* name = key.as<std::string>();
    if (name == nullptr) origin().broken("a tensor's name is {}, expected a text", key.kind());
    list.emplace_back(*name, tensor(value, *name));
  }
  return list;
}

const PickleEntries& TorchFile::entries() const {
  const PickleEntries* entries = archive::entries_of(root());
  if (entries == nullptr) origin().broken("it holds {}, expected a dict of tensors", root().kind());
  return *entries;
}

struct TorchFile::Found {
  NamedTensors tensors{};
  std::vector<std::string> skipped_checkpoints{};  // the first `kMaxNamed`
  size_t passed = 0;
  size_t names = 0;
};

NamedTensors TorchFile::all_as_tensors(bool logs_skipped) const {
  if (archive::TorchArchive::members_of_module(root()) != nullptr) return tensors();
  Found found;
  add_all(entries(), "", found);
  std::unordered_set<std::string_view> names;
  for (const auto& [name, tensor] : found.tensors) {
    if (!names.insert(name).second) origin().broken("two values have the name {}", archive::quote_for_terminal(name));
  }
  if (logs_skipped && !found.skipped_checkpoints.empty()) {
    const size_t more = found.passed - found.skipped_checkpoints.size();
    base::log_once(base::LogLevel::warning, {}, "{}: {}: skipped entries that are neither tensors nor numbers: {}{}",
                   origin().operation, origin().path, fmt::join(found.skipped_checkpoints, ", "),
                   more == 0 ? "" : fmt::format(", and {} more", more));
  }
  return std::move(found.tensors);
}

void TorchFile::add_all(const PickleEntries& entries, const std::string& prefix, Found& found) const {
  for (const auto& [key, value] : entries) {
    const auto* text = key.as<std::string>();
    const auto* number = key.as<int64_t>();
    if (text == nullptr && number == nullptr) {
      origin().broken("a tensor's name is {}, expected a text", key.kind());
    }
    add_value(value, prefix + (text != nullptr ? *text : std::to_string(*number)), found);
  }
}

void TorchFile::add_value(const PickleValue& value, const std::string& path, Found& found) const {
  found.names += path.size();
  if (found.names > kMaxNames) origin().broken("the values' names have more than {} bytes together", kMaxNames);
  if (is_tensor(value)) {
    found.tensors.emplace_back(path, tensor(value, path));
  } else if (const auto number = plain_number(value)) {
    found.tensors.emplace_back(path, at::scalar_tensor(*number, number->type()));
  } else if (const PickleEntries* inner = archive::entries_of(value)) {
    add_all(*inner, path + ".", found);
  } else if (const PickleItems* items = archive::items_in(value)) {
    if (at::Tensor numbers = tensor_of_numbers(*items); numbers.defined()) {
      found.tensors.emplace_back(path, std::move(numbers));
    } else {
      for (size_t i = 0; i < items->size(); ++i) add_value((*items)[i], fmt::format("{}.{}", path, i), found);
    }
  } else if (value.as<archive::PickleNone>() == nullptr) {
    if (found.passed++ < kMaxNamed) {
      found.skipped_checkpoints.push_back(fmt::format("{} ({})", archive::quote_for_terminal(path), value.kind()));
    }
  }
}

NamedTensors TorchFile::tensors_by_path() const {
  NamedTensors list;
  if (const PickleEntries* entries = archive::entries_of(root())) add_by_path(*entries, "", list);
  return list;
}

void TorchFile::add_by_path(const PickleEntries& entries, const std::string& prefix, NamedTensors& list) const {
  for (const auto& [key, value] : entries) {
    const auto* text = key.as<std::string>();
    const auto* number = key.as<int64_t>();
    if (text == nullptr && number == nullptr) continue;
    const std::string path = prefix + (text != nullptr ? *text : std::to_string(*number));
    if (is_tensor(value)) {
      list.emplace_back(path, tensor(value, path));
    } else if (const PickleEntries* inner = archive::entries_of(value)) {
      add_by_path(*inner, path + ".", list);
    }
  }
}

}  // namespace accelerate::checkpoint
