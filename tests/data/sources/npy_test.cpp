// SPDX-License-Identifier: Apache-2.0
// recorded/*.npy are files from NumPy.
#include "tests/data/sources/files.hpp"
//
#include <sys/stat.h>

#include <algorithm>

#include "accelerate/data/memory.hpp"
#include "accelerate/data/sources/npy.hpp"

using accelerate::ErrorKind;
using accelerate::data::from_tensors;
using accelerate::data::map_npy;
using accelerate::data::map_raw;
using accelerate::data::npy;
using accelerate::data::NpyFiles;
using accelerate::data::OnError;
using namespace test_files;

namespace {

const fs::path recorded_arrays = TEST_SOURCE_DIR "/tests/data/sources/recorded";

std::string refused(const fs::path& path) {
  return message([&] { (void)map_npy(path); }, ErrorKind::data);
}

/// A .npy file with this text as its header, padded as in NumPy.
std::string npy_bytes(std::string header, const std::string& numbers) {
  header.resize((header.size() + 10 + 1 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  return "\x93NUMPY" + std::string("\1\0", 2) + bytes<uint16_t>({static_cast<uint16_t>(header.size())}) + header +
         numbers;
}

/// Memory of this process in KiB, without mapped files.
int64_t own_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8));
  return -1;
}

}  // namespace

TEST_CASE("NumPy's files are read with dtype, shape and values") {
  const auto six = torch::arange(6, torch::kLong).view({2, 3});
  const auto same = [](const std::string& name, const at::Tensor& expected) {
    CAPTURE(name);
    const auto found = map_npy(recorded_arrays / (name + ".npy"));
    CHECK(found.dtype() == expected.dtype());
    CHECK(found.equal(expected));
  };
  same("b1", six % 2 == 1);
  same("i1", (six - 3).to(torch::kChar));
  same("i2", (six - 3).to(torch::kShort));
  same("i4", (six - 3).to(torch::kInt));
  same("i8", six - 3);
  same("u1", (six + 128).to(torch::kByte));
  same("u2", (six + 32768).to(torch::kUInt16));
  same("u4", (six + 2147483648).to(torch::kUInt32));
  same("f2", (six / 4.0).to(torch::kHalf));
  same("f4", (six / 4.0).to(torch::kFloat));
  same("f8", six.to(torch::kDouble) / 4);
  const auto lower = six.to(torch::kDouble);
  same("c8", torch::complex(lower, -lower).to(torch::kComplexFloat));
  same("c16", torch::complex(lower, -lower));
  const auto u8 = map_npy(recorded_arrays / "u8.npy");
  CHECK(u8.dtype() == torch::kUInt64);
  CHECK(u8.view(torch::kLong).equal(six + std::numeric_limits<int64_t>::min()));
}

TEST_CASE("all header versions, scalars, empty arrays, and C and Fortran order are read") {
  const auto six = torch::arange(6, torch::kFloat).view({2, 3});
  CHECK(map_npy(recorded_arrays / "version2.npy").equal(six));
  CHECK(map_npy(recorded_arrays / "version3.npy").equal(six));
  CHECK(map_npy(recorded_arrays / "python2.npy").equal(torch::ones({2}, torch::kDouble)));  // its shape is "(2L,)"
  CHECK(map_npy(recorded_arrays / "number.npy").equal(torch::tensor(2.5F)));
  CHECK(map_npy(recorded_arrays / "empty.npy").sizes() == at::IntArrayRef{0, 3});
  CHECK(map_npy(recorded_arrays / "column_in_fortran_order.npy")
            .equal(torch::tensor({0., 1., 2.}, torch::kDouble).view({3, 1})));
}

TEST_CASE("batches of every dtype are gathered from the mapped files") {
  for (const std::string name : {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"}) {
    CAPTURE(name);
    const auto path = recorded_arrays / (name + ".npy");
    auto loader =
        npy({.data = path, .target = path},
            {.batch_size = 2, .sampler = accelerate::data::subset_sampler(torch::tensor({1, 0}, torch::kLong), false)});
    const auto batch = *loader.begin();
    const auto whole = map_npy(path);
    CHECK(batch.data.equal(at::stack({whole[1], whole[0]})));
    CHECK(batch.target.equal(batch.data));
  }
}

TEST_CASE("a batch and the mapped tensor may be changed without an effect on the file") {
  const Folder folder;
  fs::copy(recorded_arrays / "i4.npy", folder.path / "x.npy");
  const auto before = read(folder.path / "x.npy");
  auto tensor = map_npy(folder.path / "x.npy");
  auto loader = npy({.data = folder.path / "x.npy"}, {.batch_size = 2});
  loader.begin()->data.fill_(9);
  tensor.fill_(7);
  CHECK(tensor.eq(7).all().item<bool>());
  CHECK(map_npy(folder.path / "x.npy").equal(map_npy(recorded_arrays / "i4.npy")));
  CHECK(read(folder.path / "x.npy") == before);
}

TEST_CASE("a tensor keeps its file mapped, also after the file is removed") {
  const Folder folder;
  fs::copy(recorded_arrays / "f4.npy", folder.path / "x.npy");
  const auto row = map_npy(folder.path / "x.npy")[1];
  fs::remove(folder.path / "x.npy");
  CHECK(row.equal(torch::tensor({0.75F, 1.0F, 1.25F})));
}

TEST_CASE("a mapped file uses shared page cache, not memory of the process") {
  const Folder folder;
  const std::string megabyte(1 << 20, '\1');
  std::ofstream out(folder.path / "x.bin", std::ios::binary);
  for (int i = 0; i < 64; ++i) out << megabyte;
  out.close();
  const auto tensor = map_raw({.path = folder.path / "x.bin", .dtype = torch::kByte, .sample_shape = {1 << 20}});
  const auto before = own_memory();
  CHECK(before > 0);
  const auto* const bytes = tensor.const_data_ptr<uint8_t>();
  CHECK(std::count(bytes, bytes + tensor.numel(), 1) == 64 << 20);  // reads the whole file without allocating memory
  CHECK(own_memory() - before < 16 * 1024);
}

TEST_CASE("raw files have the given dtype and shape") {
  const Folder folder;
  write(folder.path / "x", "head" + bytes<float>({1, 2, 3, 4, 5, 6, 7, 8}));
  const auto tensor = map_raw({.path = folder.path / "x", .sample_shape = {2, 2}, .header_bytes = 4});
  CHECK(tensor.equal(torch::arange(1, 9, torch::kFloat).view({2, 2, 2})));
  write(folder.path / "y", bytes<int64_t>({1, 0}));
  const auto labels = map_raw({.path = folder.path / "y", .dtype = torch::kLong});
  auto loader = from_tensors(tensor, labels, {.batch_size = 2});
  CHECK(loader.begin()->data.equal(tensor));
  CHECK(loader.begin()->target.equal(torch::tensor({1, 0}, torch::kLong)));
}

TEST_CASE("arrays that LibTorch cannot map are refused with the call that saves them differently") {
  const auto error_of = [](const std::string& name) { return refused(recorded_arrays / (name + ".npy")); };
  const auto path = [](const std::string& name) { return "npy: " + (recorded_arrays / (name + ".npy")).string(); };
  CHECK(error_of("fortran") ==
        path("fortran") + " is in Fortran order: expected C order; save it as numpy.ascontiguousarray(array)");
  CHECK(error_of("big_endian") ==
        path("big_endian") + " is big-endian ('>f4'): expected little-endian; save it as array.astype('<f4')");
  CHECK(error_of("objects") ==
        path("objects") + " holds Python objects: expected numbers; save it as array.astype('float32')");
  CHECK(error_of("text") ==
        path("text") +
            " holds '<U3': expected b1, i1, i2, i4, i8, u1, u2, u4, u8, f2, f4, f8, c8 or c16; save it as "
            "array.astype('float32')");
  CHECK(error_of("records") ==
        path("records") + " holds records of several fields: expected numbers; save each field alone");
}

TEST_CASE("an invalid .npy file is refused with path, expected and found") {
  const Folder folder;
  const auto path = folder.file("x.npy");
  const auto error_of = [&](const std::string& content) {
    write(path, content);
    return refused(path);
  };
  const std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  const auto numbers = bytes<float>({1, 2, 3, 4, 5, 6});
  write(path, npy_bytes(dict, numbers));
  CHECK(map_npy(path).equal(torch::arange(1, 7, torch::kFloat).view({2, 3})));

  // written by Python 2
  write(path, npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }", numbers));
  CHECK(map_npy(path).equal(torch::arange(1, 7, torch::kFloat).view({2, 3})));

  CHECK(error_of("PK\3\4....") ==
        "npy: " + path +
            " is not a .npy file: expected the bytes 93 4e 55 4d 50 59 at its start, found 50 4b 03 04 2e 2e");
  CHECK(error_of("") ==
        "npy: " + path + " is not a .npy file: expected the bytes 93 4e 55 4d 50 59 at its start, found none");
  CHECK(error_of("\x93NUMPY\x01") == "npy: " + path + " is cut off: expected a header of 8 bytes, found 7");
  CHECK(error_of(npy_bytes(dict, "").substr(0, 50)) ==
        "npy: " + path + " is cut off: expected a header of 128 bytes, found 50");
  CHECK(error_of(std::string("\x93NUMPY\x02\0\xff\xff\xff\xff{", 13)) ==
        "npy: " + path + " is cut off: expected a header of 4294967307 bytes, found 13");
  CHECK(error_of("\x93NUMPY\x09\x01....") == "npy: " + path + " is of version 9.1: expected 1.0, 2.0 or 3.0");
  CHECK(error_of(npy_bytes("{'descr': '<f4', 'shape': (2, 3)}", numbers)) ==
        "npy: " + path +
            " has a header that is not NumPy's: expected {'descr': ..., 'fortran_order': ..., 'shape': ...}, found "
            "'{'descr': '<f4', 'shape': (2, 3)}'");
  CHECK(error_of(npy_bytes(dict, numbers.substr(1))) ==
        "npy: " + path + " is cut off: expected 24 bytes after the header, [2, 3] float32, found 23");
  CHECK(error_of(npy_bytes(dict, numbers + "x")) ==
        "npy: " + path + " is too long: expected 24 bytes after the header, [2, 3] float32, found 25");
}

TEST_CASE("a header with wrong sizes is refused without an allocation") {
  const Folder folder;
  const auto path = folder.file("x.npy");
  const auto error_of = [&](const std::string& shape) {
    write(path, npy_bytes("{'descr': '<f8', 'fortran_order': False, 'shape': (" + shape + "), }", "abc"));
    return refused(path);
  };
  CHECK(error_of("1000000000000,") ==
        "npy: " + path +
            " is cut off: expected 8000000000000 bytes after the header, [1000000000000] float64, found 3");
  CHECK(error_of("4294967296, 4294967296") ==
        "npy: " + path + " is damaged: its header has [4294967296, 4294967296] float64, more than any file contains");
  for (const std::string shape : {"-1,", "99999999999999999999,", "1.5,", "1 2", "1,,", "'1',", "1LL,", "1l,", "L,"}) {
    CAPTURE(shape);
    CHECK(error_of(shape).starts_with("npy: " + path + " has a header that is not NumPy's: expected "));
  }
}

TEST_CASE("a .npy file cut at any length is an Error") {
  const Folder folder;
  const auto whole = read(recorded_arrays / "i8.npy");
  for (size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    write(folder.path / "x.npy", whole.substr(0, length));
    CHECK(refused(folder.path / "x.npy").starts_with("npy: "));
  }
}

TEST_CASE("missing files, folders, pipes and misaligned data are refused") {
  const Folder folder;
  CHECK(message([] { (void)map_npy("/nowhere/x.npy"); }, ErrorKind::io) ==
        "npy: /nowhere/x.npy cannot be opened: No such file or directory");
  CHECK(message([&] { (void)map_npy(folder.path); }, ErrorKind::io) ==
        "npy: " + folder.path.string() + " is a folder: expected a file");
  const auto pipe = folder.file("pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(message([&] { (void)map_npy(pipe); }, ErrorKind::io) ==
        "npy: " + pipe + " is no regular file: expected a file");
  const auto path = folder.file("x.npy");
  const std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}\n";
  write(path,
        "\x93NUMPY" + std::string("\1\0", 2) + bytes<uint16_t>({static_cast<uint16_t>(dict.size())}) + dict + "abcd");
  CHECK(message([&] { (void)map_npy(path); }, ErrorKind::data) ==
        "npy: " + path +
            " has its first number at byte 66: expected a multiple of 4, as it is float32; save it again with "
            "numpy.save");
}

TEST_CASE("raw files with an incomplete sample, and invalid descriptions, are refused") {
  const Folder folder;
  const auto path = folder.file("x.bin");
  write(path, std::string(50, 'x'));
  using File = accelerate::data::RawFile;
  const auto error_of = [](const File& file, ErrorKind kind) { return message([&] { (void)map_raw(file); }, kind); };
  CHECK(error_of({.path = path, .sample_shape = {2, 3}}, ErrorKind::data) ==
        "map_raw: " + path + " has 50 bytes: expected a multiple of 24, a sample [2, 3] of float32, found 2 more");
  CHECK(error_of({.path = path, .header_bytes = 64}, ErrorKind::data) ==
        "map_raw: " + path + " is cut off: expected a header of 64 bytes, found 50");
  CHECK(error_of({.path = path, .header_bytes = 2}, ErrorKind::data) ==
        "map_raw: " + path +
            " has its first number at byte 2: expected a multiple of 4, as it is float32; make header_bytes one");
  CHECK(error_of({.path = path, .header_bytes = -1}, ErrorKind::usage) ==
        "map_raw: header_bytes is -1, must be at least 0");
  CHECK(error_of({.path = path, .sample_shape = {2, 0}}, ErrorKind::usage) ==
        "map_raw: sample_shape is [2, 0], must be the shape of at least one number");
}

TEST_CASE("inconsistent counts, empty files and labels out of range are refused with file and sample") {
  const Folder folder;
  const auto x = (recorded_arrays / "f4.npy").string();
  const auto y = folder.file("y.npy");
  const auto labels = [&](const std::string& shape, const std::string& numbers, const std::string& descr = "<i8") {
    write(y, npy_bytes("{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }", numbers));
  };
  const auto error_of = [&](std::optional<int64_t> classes, ErrorKind kind) {
    return message([&] { (void)npy({.data = x, .target = y, .classes = classes}); }, kind);
  };
  labels("3,", bytes<int64_t>({0, 1, 2}));
  CHECK(error_of({}, ErrorKind::data) == "npy: " + y + " has 3 samples: expected 2, as in " + x);
  labels("2,", bytes<int64_t>({0, 3}));
  CHECK(error_of(3, ErrorKind::data) == "npy: " + y + " has label 3 for sample 1: expected a label from 0 to 2");
  CHECK(npy({.data = x, .target = y, .classes = 4}).sample_count() == 2);
  CHECK(error_of(0, ErrorKind::usage) == "npy: classes is 0, must be at least 1");
  labels("2, 2", bytes<int8_t>({0, 1, 2, -1}), "|i1");
  CHECK(error_of(3, ErrorKind::data) == "npy: " + y + " has label -1 for sample 1: expected a label from 0 to 2");
  labels("2,", bytes<float>({0, 1}), "<f4");
  CHECK(error_of(3, ErrorKind::usage) == "npy: " + y + " holds float32: expected integers, as classes is 3");

  CHECK(message([&] { (void)npy({.data = recorded_arrays / "empty.npy"}); }, ErrorKind::data) ==
        "npy: " + (recorded_arrays / "empty.npy").string() + " has 0 samples: expected at least 1");
  CHECK(message([&] { (void)npy({.data = recorded_arrays / "number.npy"}); }, ErrorKind::data) ==
        "npy: " + (recorded_arrays / "number.npy").string() + " holds one number: expected [N, ...]");
  CHECK(message([&] { (void)npy({.data = x, .target = y, .on_error = OnError::skip}); }, ErrorKind::usage) ==
        "npy: on_error is skip, but classes is not given, so no sample can be recognised as broken; give classes, or "
        "remove on_error");
  CHECK(message([&] { (void)npy({.data = x, .classes = 3}); }, ErrorKind::usage) ==
        "npy: classes is 3, but target is not set");
}

TEST_CASE("with skip, samples with invalid labels are omitted, counted and logged once; a truncated file is refused") {
  const Folder folder;
  const auto x = folder.file("x.npy"), y = folder.file("y.npy");
  const auto array = [](const std::string& shape, const std::string& numbers) {
    return npy_bytes("{'descr': '<i8', 'fortran_order': False, 'shape': (" + shape + "), }", numbers);
  };
  write(x, array("5,", bytes<int64_t>({10, 11, 12, 13, 14})));
  write(y, array("5,", bytes<int64_t>({0, 3, 1, -1, 2})));
  const NpyFiles files{.data = x, .target = y, .classes = 3, .on_error = OnError::skip};
  const auto lines = logged([&] {
    auto loader = npy(files, {.batch_size = 5});
    CHECK(loader.sample_count() == 3);
    const auto batch = *loader.begin();
    CHECK(batch.data.equal(torch::tensor({10, 12, 14}, torch::kLong)));
    CHECK(batch.target.equal(torch::tensor({0, 1, 2}, torch::kLong)));
  });
  CHECK(lines == std::vector<std::string>{"npy: 2 of 5 samples are left out; the first: " + y +
                                          " has label 3 for sample 1: expected a label from 0 to 2"});

  write(y, array("5, 2", bytes<int64_t>({0, 1, 5, 6, 1, 2, 0, 7, 2, 2})));  // two labels per sample
  CHECK(npy(files).sample_count() == 3);
  write(y, array("5,", bytes<int64_t>({0, 1, 2, 1, 0})));
  CHECK(logged([&] { CHECK(npy(files).sample_count() == 5); }).empty());
  write(y, array("5,", bytes<int64_t>({4, 4, 4, 4, 4})));
  CHECK(message([&] { (void)npy(files); }, ErrorKind::data) ==
        "npy: all 5 samples are broken; the first: " + y + " has label 4 for sample 0: expected a label from 0 to 2");
  write(y, array("5,", bytes<int64_t>({0, 1})));
  CHECK(message([&] { (void)npy(files); }, ErrorKind::data) ==
        "npy: " + y + " is cut off: expected 40 bytes after the header, [5] int64, found 16");
}
