// Package doctor says what of a machine lets symmem run, what does not, and what to do about it.
//
// Gathering and judging are apart. Look functions ask the system and return facts, plain data that
// can be encoded; they report what they could not find out as a fact, too, and never fail. Examine
// turns Facts into a Report and asks nobody, so that what a machine with eight GPUs would be told
// can be tested on one without any.
//
// NVML is asked where it is there. Its functions and numbers are those of nvml.h of CUDA 12.9.
package doctor
