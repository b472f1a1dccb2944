package nccl

import (
	"runtime"
	"testing"

	"symmem/internal/cuda"
)

// BenchmarkContext measures the call with which gpu.GPU.Do makes the context current.
func BenchmarkContext(b *testing.B) {
	gpus, err := cuda.Load()
	if err != nil {
		b.Fatal(err)
	}

	gpu, err := gpus.Device(0)
	if err != nil {
		b.Fatal(err)
	}

	context, err := gpu.RetainPrimary()
	if err != nil {
		b.Fatal(err)
	}

	defer func() {
		if err := gpu.ReleasePrimary(); err != nil {
			b.Error(err)
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for b.Loop() {
		if err := gpus.SetCurrent(context); err != nil {
			b.Fatal(err)
		}
	}
}
