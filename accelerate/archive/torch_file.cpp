// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/torch_file.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "accelerate/archive/rebuilt_tensor.hpp"
#include "accelerate/archive/unpickle.hpp"

namespace accelerate::archive {
namespace {

constexpr size_t kMaxDimensions = 64;  // limit of PyTorch

std::optional<uint64_t> natural_of(const PickleValue& value) {
  const auto* number = value.as<int64_t>();
  return number != nullptr && *number >= 0 ? std::optional(static_cast<uint64_t>(*number)) : std::nullopt;
}

std::string value_text(const PickleValue& value) {
  if (value.as<PickleNone>() != nullptr) return "None";
  if (const auto* flag = value.as<bool>()) return *flag ? "True" : "False";
  if (const auto* number = value.as<int64_t>()) return std::to_string(*number);
  if (const auto* number = value.as<double>()) return fmt::format("{}", *number);
  if (const auto* text = value.as<std::string>()) return quote_for_terminal(*text);
  if (const auto* global = value.as<PickleGlobal>()) return global->str();
  if (const auto* bytes = value.as<PickleBytes>()) return fmt::format("{} bytes", bytes->bytes.size());
  if (const auto* big = value.as<PickleBigInteger>()) {
    std::string digits;
    for (auto at = big->bytes.rbegin(); at != big->bytes.rend(); ++at) {
      digits += fmt::format("{:02x}", static_cast<uint8_t>(*at));
    }
    return "0x" + digits;
  }
  return std::string(value.kind());
}

// Compressed TorchScript code, which is never executed here.
bool is_code(std::string_view member) { return member.find("/code/") != std::string_view::npos; }

// Traverses the value of a file and lists its content.
class TorchLister {
 public:
  explicit TorchLister(const TorchArchive& archive) : archive_(archive) { list("", archive.root()); }

  TorchFile take() { return std::move(result_); }

 private:
  // The path of each value contains all keys that lead to it, so a few bytes of keys could use all memory.
  std::string joined(const std::string& path, const std::string& key) {
    if (key.size() > kMaxKey) {
      archive_.origin().broken("the key {} has {} bytes, expected at most {}", quote_for_terminal(key), key.size(),
                               kMaxKey);
    }
    count(path.size() + 1 + key.size());
    return path.empty() ? key : path + "." + key;
  }
  void count(size_t bytes) {
    listed_ += bytes;
    if (listed_ > kMaxListed) {
      archive_.origin().broken("the paths and texts of the values have more than {} bytes together", kMaxListed);
    }
  }
  void add_other(const std::string& path, std::string text) {
    count(text.size());
    result_.others.emplace_back(path, std::move(text));
  }
  void list_items(const std::string& path, const PickleItems& items) {
    for (size_t i = 0; i < items.size(); ++i) list(joined(path, std::to_string(i)), items[i]);
  }
  void list_entries(const std::string& path, const PickleEntries& entries) {
    for (const auto& [key, value] : entries) {
      const auto* text = key.as<std::string>();
      list(joined(path, text != nullptr ? *text : value_text(key)), value);
    }
  }

  void list(const std::string& path, const PickleValue& value) {
    if (TorchArchive::is_tensor(value)) {
      result_.tensors.push_back(archive_.tensor(value, path));
      count(result_.tensors.back().storage.size());
    } else if (const auto* list = value.as<PickleList>()) {
      list_items(path, *list->items);
    } else if (const auto* tuple = value.as<PickleTuple>()) {
      list_items(path, *tuple->items);
    } else if (const auto* entries = entries_of(value)) {
      list_entries(path, *entries);
    } else if (const auto* object = value.as<PickleObject>()) {
      list_object(path, *object->parts);
    } else {
      add_other(path, value_text(value));
    }
  }
  void list_object(const std::string& path, const PickleObject::Parts& parts) {
    add_other(path, parts.global.str());
    list_items(path, parts.arguments);
    list_items(path, parts.items);
    list_entries(path, parts.entries);
    if (parts.state.as<PickleNone>() == nullptr) list(path, parts.state);
  }

  static constexpr size_t kMaxKey = 4096, kMaxListed = size_t{1} << 28;
  const TorchArchive& archive_;
  size_t listed_ = 0;
  TorchFile result_;
};

}  // namespace

TorchArchive::TorchArchive(std::string_view file, Origin origin) : origin_(std::move(origin)) {
  const std::vector<ZipMember> members = read_zip(file, origin_, is_code);
  const auto main = std::find_if(members.begin(), members.end(),
                                 [](const ZipMember& member) { return member.name.ends_with("/data.pkl"); });
  if (main == members.end()) origin_.broken("the ZIP file has no data.pkl; torch.save writes one");
  const std::string top = main->name.substr(0, main->name.size() - std::string_view("data.pkl").size());
  for (const ZipMember& member : members) {
    if (!member.name.starts_with(top)) continue;
    members_.emplace(member.name.substr(top.size()), member);
  }
  const auto order = members_.find("byteorder");
  if (order != members_.end() && member_bytes(file, order->second) != "little") {
    origin_.broken("the numbers are in byte order {}, little is read",
                   quote_for_terminal(member_bytes(file, order->second)));
  }
  check_member(file, *main, origin_);
  root_ = unpickle(member_bytes(file, *main), allowed_in_torch_files(), origin_);
}

bool TorchArchive::is_tensor(const PickleValue& value) { return is_parameter(value) || rebuilt_tensor(value); }

const PickleEntries* TorchArchive::members_of_module(const PickleValue& value) {
  const auto* object = value.as<PickleObject>();
  if (object == nullptr || !object->parts->global.str().starts_with("__torch__.")) return nullptr;
  return entries_of(object->parts->state);
}

TorchTensor TorchArchive::tensor(const PickleValue& value, const std::string& path) const {
  const auto found = rebuilt_tensor(value);
  if (!found) {
    const auto* object = value.as<PickleObject>();
    if (is_parameter(value) && object->parts->arguments.empty()) {
      origin_.broken("the parameter {} has no values", quote_for_terminal(path));
    }
    origin_.broken("{} is {}, expected a tensor", quote_for_terminal(path), value.kind());
  }
  const PickleItems& arguments = *found->arguments;
  if (arguments.size() < 6) {
    origin_.broken("the tensor {} is made of {} values, expected at least 6", quote_for_terminal(path),
                   arguments.size());
  }
  TorchTensor tensor{.path = path};
  const auto* storage = arguments[0].as<PicklePersistent>();
  if (storage == nullptr || storage->id->size() < 5) {
    origin_.broken("the tensor {} refers to {}, expected a storage", quote_for_terminal(path), arguments[0].kind());
  }
  const PickleItems& id = *storage->id;
  const TorchType* type = torch_type_of(found->dtype != nullptr ? *found->dtype : id[1]);
  if (type == nullptr) origin_.broken("the tensor {} has an unknown dtype", quote_for_terminal(path));
  tensor.dtype = type->dtype;
  tensor.bits = type->bits;
  place(tensor, id);
  tensor.offset = natural(arguments[1], path);
  tensor.shape = naturals(arguments[2], path);
  tensor.stride = naturals(arguments[3], path);
  check_extent(tensor);
  if (found->metadata != nullptr) read_bits(tensor, *found->metadata);
  return tensor;
}

// Reads metadata of torch._C._get_tensor_metadata(): {"conj": True}.
void TorchArchive::read_bits(TorchTensor& tensor, const PickleValue& metadata) const {
  const PickleEntries* entries = entries_of(metadata);
  if (entries == nullptr) {
    origin_.broken("the tensor {} has {} as metadata, expected a dict", quote_for_terminal(tensor.path),
                   metadata.kind());
  }
  for (const auto& [key, value] : *entries) {
    const auto* name = key.as<std::string>();
    const auto* flag = value.as<bool>();
    if (flag == nullptr || name == nullptr || (*name != "conj" && *name != "neg")) {
      origin_.broken("the tensor {} has the metadata {}: {}, expected 'conj' or 'neg' with a bool",
                     quote_for_terminal(tensor.path), value_text(key), value_text(value));
    }
    (*name == "conj" ? tensor.is_conj : tensor.is_neg) = *flag;
  }
  const bool is_complex = tensor.dtype.starts_with('C');
  const bool is_float = tensor.dtype.starts_with('F') && tensor.bits > 8;
  if (tensor.is_conj && !is_complex) {
    origin_.broken("the tensor {} is a conjugate of dtype {}, expected C64 or C128", quote_for_terminal(tensor.path),
                   tensor.dtype);
  }
  if (tensor.is_neg && !is_complex && !is_float && tensor.dtype != "BF16") {
    origin_.broken("the tensor {} is a negative of dtype {}, expected a floating-point or complex dtype",
                   quote_for_terminal(tensor.path), tensor.dtype);
  }
}

void TorchArchive::place(TorchTensor& tensor, const PickleItems& id) const {
  const auto* name = id[2].as<std::string>();
  const auto member = name == nullptr ? members_.end() : members_.find("data/" + *name);
  if (member == members_.end()) {
    origin_.broken("the tensor {} refers to the storage {}, which the file does not contain",
                   quote_for_terminal(tensor.path), name == nullptr ? id[2].kind() : quote_for_terminal(*name));
  }
  tensor.storage = *name;
  tensor.begin = member->second.begin;
  tensor.end = member->second.begin + member->second.size;
}

uint64_t TorchArchive::natural(const PickleValue& value, const std::string& path) const {
  const auto number = natural_of(value);
  if (!number) {
    origin_.broken("the tensor {} has {} in its shape, expected an integer from 0", quote_for_terminal(path),
                   value_text(value));
  }
  return *number;
}
std::vector<uint64_t> TorchArchive::naturals(const PickleValue& value, const std::string& path) const {
  const auto* size = arguments_of(value, "torch.Size");
  const auto* tuple = (size != nullptr && !size->empty() ? size->front() : value).as<PickleTuple>();
  if (tuple == nullptr) origin_.broken("the tensor {} has {} as shape", quote_for_terminal(path), value.kind());
  if (tuple->items->size() > kMaxDimensions) {
    origin_.broken("the tensor {} has {} dimensions, expected at most {}", quote_for_terminal(path),
                   tuple->items->size(), kMaxDimensions);
  }
  std::vector<uint64_t> numbers;
  for (const PickleValue& item : *tuple->items) numbers.push_back(natural(item, path));
  return numbers;
}

// Checks that the tensor's elements are within its storage.
void TorchArchive::check_extent(TorchTensor& tensor) const {
  uint64_t last = tensor.offset;
  bool fits = tensor.shape.size() == tensor.stride.size();
  tensor.elements = 1;
  for (size_t i = 0; fits && i < tensor.shape.size(); ++i) {
    uint64_t step = 0;
    fits = !__builtin_mul_overflow(tensor.elements, tensor.shape[i], &tensor.elements) &&
           (tensor.shape[i] == 0 || (!__builtin_mul_overflow(tensor.shape[i] - 1, tensor.stride[i], &step) &&
                                     !__builtin_add_overflow(last, step, &last)));
  }
  const uint64_t there = (tensor.end - tensor.begin) / (tensor.bits / 8);
  if (fits && (tensor.elements == 0 || last < there)) return;
  origin_.broken("the tensor {} reaches beyond its storage of {} elements", quote_for_terminal(tensor.path), there);
}

bool TorchTensor::is_contiguous() const {
  uint64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && stride[i] != expected) return elements == 0;
    expected *= shape[i];
  }
  return true;
}

std::string_view TorchTensor::bytes_of(std::string_view file) const {
  if (elements == 0) return {};
  return file.substr(begin + offset * (bits / 8), elements * (bits / 8));
}

TorchFile read_torch_file(std::string_view file, const Origin& origin) {
  return TorchLister(TorchArchive(file, origin)).take();
}

}  // namespace accelerate::archive
