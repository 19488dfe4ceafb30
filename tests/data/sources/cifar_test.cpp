// SPDX-License-Identifier: Apache-2.0
#include "tests/data/sources/files.hpp"
//
#include "accelerate/data/sources/cifar.hpp"

using accelerate::ErrorKind;
using accelerate::data::cifar10;
using accelerate::data::cifar100;
using accelerate::data::cifar100_normalisation;
using accelerate::data::Cifar100Labels;
using accelerate::data::OnError;
using accelerate::data::Split;
using namespace test_files;
using namespace std::string_literals;

namespace {

/// One record: the labels, then pixels that depend on `seed`.
std::string record(const std::string& labels, int seed) {
  std::string bytes = labels;
  for (int i = 0; i < 3 * 32 * 32; ++i) bytes += static_cast<char>((i * 7 + i / 1024 * 3 + seed * 31) % 256);
  return bytes;
}

/// The pixels of records with one label byte, [N, 3, 32, 32].
at::Tensor pixels(const std::string& records, int64_t label_bytes = 1) {
  const auto all = torch::tensor(std::vector<uint8_t>(records.begin(), records.end()), torch::kByte);
  return all.view({-1, label_bytes + 3072}).slice(1, label_bytes).reshape({-1, 3, 32, 32});
}

/// Computes torchvision's ToTensor and Normalize.
at::Tensor normalised(const at::Tensor& pixels, std::vector<float> mean, std::vector<float> deviation) {
  return pixels.to(torch::kFloat)
      .div(255)
      .sub_(torch::tensor(mean).view({3, 1, 1}))
      .div_(torch::tensor(deviation).view({3, 1, 1}));
}

/// Writes five training files with two images each, labels 0 to 9, and a test file with two images.
void write_cifar10(const fs::path& folder) {
  for (int part = 0; part < 5; ++part)
    write(folder / ("data_batch_" + std::to_string(part + 1) + ".bin"),
          record({static_cast<char>(2 * part)}, 2 * part) + record({static_cast<char>(2 * part + 1)}, 2 * part + 1));
  write(folder / "test_batch.bin", record("\x09", 50) + record("\x03", 51));
}

const std::string remedy =
    "; put data_batch_1.bin, data_batch_2.bin, data_batch_3.bin, data_batch_4.bin, data_batch_5.bin there, from "
    "cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html";

}  // namespace

TEST_CASE("CIFAR-10 is read file after file, normalised as in torchvision") {
  const Folder folder;
  write_cifar10(folder.path);
  auto loader = cifar10(folder.path, {.batch_size = 10});
  const auto batch = *loader.begin();
  CHECK(batch.target.equal(torch::arange(10, torch::kLong)));
  CHECK(batch.data.sizes() == at::IntArrayRef{10, 3, 32, 32});
  std::string all;
  for (int i = 1; i <= 5; ++i) all += read(folder.path / ("data_batch_" + std::to_string(i) + ".bin"));
  CHECK(batch.data.equal(normalised(pixels(all), {0.4914F, 0.4822F, 0.4465F}, {0.2470F, 0.2435F, 0.2616F})));
}

TEST_CASE("the test split, the published folder and a custom normalisation") {
  const Folder folder;
  fs::create_directories(folder.path / "cifar-10-batches-bin");
  write_cifar10(folder.path / "cifar-10-batches-bin");
  auto loader = cifar10(folder.path, {.batch_size = 2}, Split::test, {{0, 0, 0}, {1, 1, 1}});
  const auto batch = *loader.begin();
  CHECK(batch.target.equal(torch::tensor({9, 3}, torch::kLong)));
  const auto bytes = pixels(read(folder.path / "cifar-10-batches-bin" / "test_batch.bin"));
  CHECK(batch.data.equal(bytes.to(torch::kFloat).div(255)));
}

TEST_CASE("CIFAR-100 has fine and coarse labels") {
  const Folder folder;
  write(folder.path / "train.bin", record("\x13\x63", 1) + record(std::string("\0\0", 2), 2));
  write(folder.path / "test.bin", record("\x05\x07", 3));
  auto fine = cifar100(folder.path, {.batch_size = 2});
  CHECK(fine.begin()->target.equal(torch::tensor({99, 0}, torch::kLong)));
  CHECK(fine.begin()->data.equal(normalised(pixels(read(folder.path / "train.bin"), 2), {0.5071F, 0.4865F, 0.4409F},
                                            {0.2673F, 0.2564F, 0.2762F})));
  auto coarse = cifar100(folder.path, {.batch_size = 2}, Split::train, Cifar100Labels::coarse);
  CHECK(coarse.begin()->target.equal(torch::tensor({19, 0}, torch::kLong)));
  CHECK(cifar100(folder.path, {}, Split::test).begin()->target.equal(torch::tensor({7}, torch::kLong)));
}

TEST_CASE("a missing folder or file is refused with the file names and the download page") {
  const Folder folder;
  const auto error_of = [](const fs::path& path) { return message([&] { (void)cifar10(path); }, ErrorKind::io); };
  CHECK(error_of("/nowhere") == "cifar10: /nowhere is not a folder" + remedy);
  write_cifar10(folder.path);
  fs::remove(folder.path / "data_batch_4.bin");
  CHECK(error_of(folder.path) == "cifar10: " + folder.path.string() + " has no data_batch_4.bin" + remedy);
  CHECK(message([&] { (void)cifar100(folder.path); }, ErrorKind::io) ==
        "cifar100: " + folder.path.string() +
            " has no train.bin; put train.bin there, from cifar-100-binary.tar.gz of "
            "https://www.cs.toronto.edu/~kriz/cifar.html");
}

TEST_CASE("a file with an incomplete image is refused with path, expected and found") {
  const Folder folder;
  write_cifar10(folder.path);
  const auto path = folder.file("data_batch_3.bin");
  const auto error_of = [&](const std::string& bytes) {
    write(path, bytes);
    return message([&] { (void)cifar10(folder.path); }, ErrorKind::data);
  };
  const std::string expected = " bytes: expected a multiple of 3073, a label and 3x32x32 pixels an image";
  CHECK(error_of(record("\1", 0).substr(0, 3072)) == "cifar10: " + path + " has 3072" + expected);
  CHECK(error_of(record("\1", 0) + "x") == "cifar10: " + path + " has 3074" + expected);
  CHECK(error_of("") == "cifar10: " + path + " has 0" + expected);
  write(folder.path / "train.bin", record("\1", 0));
  CHECK(message([&] { (void)cifar100(folder.path); }, ErrorKind::data) ==
        "cifar100: " + folder.file("train.bin") +
            " has 3073 bytes: expected a multiple of 3074, 2 labels and 3x32x32 pixels an image");
}

TEST_CASE("an invalid label is refused with file and sample") {
  const Folder folder;
  write_cifar10(folder.path);
  const auto path = folder.file("data_batch_2.bin");
  write(path, record("\1", 0) + record("\x0a", 0));
  CHECK(message([&] { (void)cifar10(folder.path); }, ErrorKind::data) ==
        "cifar10: " + path + " has label 10 for sample 1: expected a label from 0 to 9");
  write(folder.path / "train.bin", record("\x14\x63", 0));
  CHECK(cifar100(folder.path).sample_count() == 1);
  CHECK(message([&] { (void)cifar100(folder.path, {}, Split::train, Cifar100Labels::coarse); }, ErrorKind::data) ==
        "cifar100: " + folder.file("train.bin") + " has label 20 for sample 0: expected a label from 0 to 19");
}

TEST_CASE("with skip, images with invalid labels and truncated images are omitted, counted and logged once") {
  const Folder folder;
  write_cifar10(folder.path);
  const auto bad = folder.file("data_batch_2.bin");
  write(bad, record("\x0a", 2) + record("\1", 3));
  write(folder.path / "data_batch_4.bin", record("\6", 6) + record("\7", 7).substr(0, 3000));
  const auto whole = [&] {
    return cifar10(folder.path, {.batch_size = 10}, Split::train, {{0, 0, 0}, {1, 1, 1}}, OnError::skip);
  };
  const auto lines = logged([&] {
    auto loader = whole();
    CHECK(loader.sample_count() == 8);
    const auto batch = *loader.begin();
    CHECK(batch.target.equal(torch::tensor({0, 1, 1, 4, 5, 6, 8, 9}, torch::kLong)));
    CHECK(batch.data[2].equal(pixels(record("\1", 3))[0].to(torch::kFloat).div(255)));
    CHECK(batch.data[7].equal(pixels(record("\x09", 9))[0].to(torch::kFloat).div(255)));
    (void)whole();
  });
  CHECK(lines ==
        std::vector<std::string>{"cifar10: 2 of 10 images are left out; the first: " + folder.file("data_batch_4.bin") +
                                 " has 6073 bytes: expected a multiple of 3073, a label and 3x32x32 pixels "
                                 "an image"});
  write(folder.path / "test.bin", record("\0\x64"s, 1));
  CHECK(message(
            [&] {
              (void)cifar100(folder.path, {}, Split::test, Cifar100Labels::fine, cifar100_normalisation, OnError::skip);
            },
            ErrorKind::data) == "cifar100: all 1 images are broken; the first: " + folder.file("test.bin") +
                                    " has label 100 for sample 0: expected a label from 0 to 99");
}
