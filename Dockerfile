# docker build -t accelerate-cpp . && docker run --rm accelerate-cpp
# The build runs ./run demo once, so that the image contains LibTorch, the library and the built demo.
FROM debian:12-slim
COPY . /accelerate-cpp
WORKDIR /accelerate-cpp
RUN ./run demo --epochs 1 && rm -rf /var/lib/apt/lists/*
CMD ["./run", "demo"]
