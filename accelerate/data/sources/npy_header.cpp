// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/npy_header.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/data/sources/files.hpp"

namespace accelerate::data {
namespace {

constexpr size_t kMaxDimensions = 64;  // NumPy's own limit

/// Reads the Python literals of a header from left to right, ignoring spaces between them.
class PythonText {
 public:
  explicit PythonText(std::string_view text) : rest_(text) {}

  bool take(char c) {
    skip_spaces();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool take(std::string_view word) {
    skip_spaces();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  std::optional<std::string_view> string() {
    skip_spaces();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return std::nullopt;
    const auto end = rest_.find(rest_[0], 1);
    if (end == std::string_view::npos) return std::nullopt;
    const auto found = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return found;
  }
  std::optional<bool> boolean() {
    if (take(std::string_view("True"))) return true;
    if (take(std::string_view("False"))) return false;
    return std::nullopt;
  }
  std::optional<int64_t> number() {
    skip_spaces();
    int64_t value = 0;
    const auto [end, problem] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (problem != std::errc() || value < 0) return std::nullopt;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    if (rest_.starts_with('L')) rest_.remove_prefix(1);  // Python 2 writes a long integer as 2L
    return value;
  }
  std::optional<std::vector<int64_t>> tuple() {
    if (!take('(')) return std::nullopt;
    std::vector<int64_t> numbers;
    while (!take(')')) {
      const auto next = number();
      if (!next || numbers.size() == kMaxDimensions) return std::nullopt;
      numbers.push_back(*next);
      if (!take(',') && !rest_.starts_with(')')) return std::nullopt;
    }
    return numbers;
  }
  bool ended() {
    skip_spaces();
    return rest_.empty();
  }
  [[nodiscard]] std::string_view rest() const { return rest_; }

 private:
  void skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size())); }

  std::string_view rest_;
};

struct NpyDict {
  std::optional<std::string_view> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// Reads the three keys, each once, in any order.
std::optional<NpyDict> read_dict(std::string_view all) {
  PythonText text(all);
  NpyDict dict;
  if (!text.take('{')) return std::nullopt;
  while (!text.take('}')) {
    const auto key = text.string();
    if (!key || !text.take(':')) return std::nullopt;
    if (*key == "descr" && !dict.descr) {
      // A list is a dtype with fields, which is unsupported, so the rest of the header is not read.
      if (text.take('['))
        return NpyDict{.descr = std::string_view("["), .fortran_order = false, .shape = std::vector<int64_t>{}};
      dict.descr = text.string();
      if (!dict.descr) return std::nullopt;
    } else if (*key == "fortran_order" && !dict.fortran_order) {
      dict.fortran_order = text.boolean();
      if (!dict.fortran_order) return std::nullopt;
    } else if (*key == "shape" && !dict.shape) {
      dict.shape = text.tuple();
      if (!dict.shape) return std::nullopt;
    } else {
      return std::nullopt;
    }
    if (!text.take(',') && !text.rest().starts_with('}')) return std::nullopt;
  }
  if (!text.ended() || !dict.descr || !dict.fortran_order || !dict.shape) return std::nullopt;
  return dict;
}

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 14> kNpyTypes{{{"b1", at::kBool},
                                                                                 {"i1", at::kChar},
                                                                                 {"i2", at::kShort},
                                                                                 {"i4", at::kInt},
                                                                                 {"i8", at::kLong},
                                                                                 {"u1", at::kByte},
                                                                                 {"u2", at::kUInt16},
                                                                                 {"u4", at::kUInt32},
                                                                                 {"u8", at::kUInt64},
                                                                                 {"f2", at::kHalf},
                                                                                 {"f4", at::kFloat},
                                                                                 {"f8", at::kDouble},
                                                                                 {"c8", at::kComplexFloat},
                                                                                 {"c16", at::kComplexDouble}}};

at::ScalarType npy_type(std::string_view descr, const std::filesystem::path& path) {
  if (descr.starts_with('['))
    base::fail(ErrorKind::data, {}, "npy",
               "{} holds records of several fields: expected numbers; save each field alone", path.string());
  if (descr == "|O")
    base::fail(ErrorKind::data, {}, "npy",
               "{} holds Python objects: expected numbers; save it as array.astype('float32')", path.string());
  const auto name = descr.substr(std::min<size_t>(1, descr.size()));
  const auto* const row =
      std::find_if(kNpyTypes.begin(), kNpyTypes.end(), [&](const auto& r) { return r.first == name; });
  if (row == kNpyTypes.end() || std::string_view("<>|=").find(descr[0]) == std::string_view::npos)
    base::fail(ErrorKind::data, {}, "npy",
               "{} holds {}: expected b1, i1, i2, i4, i8, u1, u2, u4, u8, f2, f4, f8, c8 or c16; save it as "
               "array.astype('float32')",
               path.string(), quote_for_terminal(descr));
  if (descr[0] == '>' && !name.ends_with('1'))
    base::fail(ErrorKind::data, {}, "npy",
               "{} is big-endian ({}): expected little-endian; save it as array.astype('<{}')", path.string(),
               quote_for_terminal(descr), name);
  return row->second;
}

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8U | static_cast<uint8_t>(bytes[i]);
  return value;
}

/// Returns the begin and end of the dict.
std::pair<size_t, size_t> dict_place(std::string_view bytes, const std::filesystem::path& path) {
  constexpr std::string_view magic = "\x93NUMPY";
  if (!bytes.starts_with(magic)) {
    std::string found;
    for (const char c : bytes.substr(0, magic.size())) found += fmt::format(" {:02x}", static_cast<uint8_t>(c));
    base::fail(ErrorKind::data, {}, "npy",
               "{} is not a .npy file: expected the bytes 93 4e 55 4d 50 59 at its start, found{}", path.string(),
               found.empty() ? " none" : found);
  }
  const auto need = [&](size_t wanted) {
    if (bytes.size() < wanted)
      base::fail(ErrorKind::data, {}, "npy", "{} is cut off: expected a header of {} bytes, found {}", path.string(),
                 wanted, bytes.size());
  };
  need(8);
  const int major = static_cast<uint8_t>(bytes[6]);
  if (major < 1 || major > 3)
    base::fail(ErrorKind::data, {}, "npy", "{} is of version {}.{}: expected 1.0, 2.0 or 3.0", path.string(), major,
               static_cast<uint8_t>(bytes[7]));
  const size_t begin = major == 1 ? 10 : 12;
  need(begin);
  const size_t end = begin + little_endian(bytes.substr(8, begin - 8));
  need(end);
  return {begin, end};
}

}  // namespace

NpyHeader read_npy_header(std::string_view bytes, const std::filesystem::path& path) {
  const auto [begin, end] = dict_place(bytes, path);
  const auto text = bytes.substr(begin, end - begin);
  const auto dict = read_dict(text);
  if (!dict)
    base::fail(
        ErrorKind::data, {}, "npy",
        "{} has a header that is not NumPy's: expected {{'descr': ..., 'fortran_order': ..., 'shape': ...}}, found {}",
        path.string(), quote_for_terminal(text.substr(0, text.find_last_not_of(" \n") + 1)));
  const auto dtype = npy_type(*dict->descr, path);
  // If at most one dimension differs from 1, C and Fortran order are the same.
  const auto longer = std::count_if(dict->shape->begin(), dict->shape->end(), [](int64_t n) { return n != 1; });
  if (*dict->fortran_order && longer > 1)
    base::fail(ErrorKind::data, {}, "npy",
               "{} is in Fortran order: expected C order; save it as numpy.ascontiguousarray(array)", path.string());
  return {.dtype = dtype, .shape = *dict->shape, .size = end};
}

}  // namespace accelerate::data
