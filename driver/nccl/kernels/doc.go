// Package kernels holds the collectives that symmem runs itself on GPUs: the `direct` path.
//
// The sources are CUDA C++ (folder src); make.sh compiles them with NVRTC, which needs no GPU, into the
// objects that are kept beside them and that Module loads. A test holds sources and objects together.
package kernels
