package cuda

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"unsafe"

	"symmem/internal/dl"
)

func TestAllocationPropLayout(t *testing.T) {
	driver, _ := load(t, declarations)
	layout, _ := driver.library.Find("layout_of_prop")
	var p AllocationProp
	var a accessGrant
	for i, want := range []uintptr{
		unsafe.Sizeof(p), unsafe.Offsetof(p.Type), unsafe.Offsetof(p.RequestedHandles),
		unsafe.Offsetof(p.Location), unsafe.Offsetof(p.win32Metadata),
		unsafe.Offsetof(p.CompressionType), unsafe.Offsetof(p.GPUDirectRDMACapable),
		unsafe.Offsetof(p.Usage), unsafe.Sizeof(a), unsafe.Offsetof(a.flags),
	} {
		if got := layout.Call(uintptr(i)); got != want {
			t.Errorf("value %d of the layout is %d in C, want %d, as in Go", i, got, want)
		}
	}
}

func TestAllocationPropReachesDriver(t *testing.T) {
	driver, recorder := load(t, declarations)
	prop := PinnedMemory(device(driver, 3), HandlePosixFD|HandleFabric, true)
	want := append(
		slices.Concat(word32(1), word32(9), word32(1), word32(3)), // type, handle types, location
		0, 0, 0, 0, 0, 0, 0, 0, // used only on Windows
		0, 1, 0, 0, 0, 0, 0, 0) // RDMA
	recorder.RecordMemory(1, 32)
	recorder.SetOutput(0, words64(2<<20))
	size, err := driver.Granularity(prop, true)
	got := recorder.LastCall()
	if size != 2<<20 || err != nil || got.Name != "cuMemGetAllocationGranularity" ||
		got.Args[2] != 1 || !slices.Equal(got.Memory[1][:32], want) {
		t.Errorf("Granularity = %d, %v; it called %s%v with properties %v, want properties %v",
			size, err, got.Name, got.Args, got.Memory[1][:32], want)
	}
	if _, err := driver.Granularity(prop, false); err != nil || recorder.LastCall().Args[2] != 0 {
		t.Errorf("Granularity(prop, false) passed %v and returned %v; want option 0 and nil",
			recorder.LastCall().Args, err)
	}
	recorder.Reset()
	recorder.RecordMemory(2, 32)
	recorder.SetOutput(0, words64(1<<40))
	handle, err := driver.Create(big, prop)
	got = recorder.LastCall()
	if handle != 1<<40 || err != nil || got.Name != "cuMemCreate" || got.Args[1] != big ||
		got.Args[3] != 0 || !slices.Equal(got.Memory[2][:32], want) {
		t.Errorf("Create = %d, %v; it called %s%v with properties %v, want properties %v",
			handle, err, got.Name, got.Args, got.Memory[2][:32], want)
	}
}

func TestPinnedMemoryWithoutRDMA(t *testing.T) {
	if p := PinnedMemory(Device{}, HandlePosixFD, false); p.GPUDirectRDMACapable != 0 {
		t.Error("PinnedMemory without RDMA sets GPUDirectRDMACapable")
	}
}

func TestSetAccessPassesEachDevice(t *testing.T) {
	driver, recorder := load(t, declarations)
	recorder.RecordMemory(2, 24)
	err := driver.SetAccess(address, big, device(driver, 3), device(driver, 5))
	got := recorder.LastCall()
	want := slices.Concat(word32(1), word32(3), word32(3), word32(1), word32(5), word32(3))
	if err != nil || got.Name != "cuMemSetAccess" || got.Args[0] != int64(address) ||
		got.Args[1] != big || got.Args[3] != 2 || !slices.Equal(got.Memory[2][:24], want) {
		t.Errorf("SetAccess = %v; it called %s%v with descriptors %v, want descriptors %v",
			err, got.Name, got.Args, got.Memory[2][:24], want)
	}
	recorder.Reset()
	if err := driver.SetAccess(address, big); err != nil || recorder.LastCall().Name != "" {
		t.Errorf("SetAccess without devices = %v after a call to %q, want nil and no call", err,
			recorder.LastCall().Name)
	}
}

func TestFabricHandlesPassUnchanged(t *testing.T) {
	driver, recorder := load(t, declarations)
	var fabric FabricHandle
	for i := range fabric {
		fabric[i] = byte(i)
	}
	recorder.SetOutput(0, fabric[:])
	exported, err := driver.ExportFabric(Handle(address))
	if got := recorder.LastCall(); exported != fabric || err != nil || got.Args[2] != 8 {
		t.Errorf("ExportFabric = %v, %v with arguments %v; want %v", exported, err, got.Args, fabric)
	}
	recorder.Reset()
	recorder.RecordMemory(1, 64)
	recorder.SetOutput(0, words64(1<<40))
	handle, err := driver.ImportFabric(fabric)
	got := recorder.LastCall()
	if handle != 1<<40 || err != nil || got.Args[2] != 8 || [64]byte(got.Memory[1][:64]) != fabric {
		t.Errorf("ImportFabric = %d, %v with arguments %v and the handle %v; want handle %v",
			handle, err, got.Args, got.Memory[1][:64], fabric)
	}
}

func TestErrorsAreTyped(t *testing.T) {
	driver, recorder := load(t, declarations)
	recorder.SetResult(2)
	_, err := driver.Create(big, AllocationProp{})
	var typed *Error
	if !errors.Is(err, ErrOutOfMemory) || errors.Is(err, ErrNotReady) || !errors.As(err, &typed) {
		t.Fatalf("Create = %v, want ErrOutOfMemory", err)
	}
	want := Error{"cuMemCreate", ErrOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}
	if *typed != want {
		t.Errorf("Create = %+v, want %+v", *typed, want)
	}
	if want := "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"; err.Error() != want {
		t.Errorf("Error() = %q, want %q", err, want)
	}
	recorder.SetResult(12345)
	const unknown = "cuMemUnmap: CUDA result 12345"
	if err := driver.Unmap(0, 0); err.Error() != unknown {
		t.Errorf("Unmap = %q, want %q", err, unknown)
	}
}

func TestNotReadyIsNotAnError(t *testing.T) {
	driver, recorder := load(t, declarations)
	recorder.SetResult(600)
	for name, query := range map[string]func() (bool, error){
		"stream": func() (bool, error) { return driver.StreamQuery(stream) },
		"event":  func() (bool, error) { return driver.EventQuery(event) },
	} {
		if done, err := query(); done || err != nil {
			t.Errorf("%s: got %v, %v; want false, nil", name, done, err)
		}
	}
	recorder.SetResult(700)
	if done, err := driver.EventQuery(event); done || !errors.Is(err, ErrIllegalAddress) {
		t.Errorf("EventQuery = %v, %v; want ErrIllegalAddress", done, err)
	}
}

func TestKernelArgumentsHaveCLayout(t *testing.T) {
	p := ParamsOf(&struct {
		number  uint32
		pointer uintptr
		float   float32
		next    uint32
		long    uint64
	}{0x11, address, 1.5, 0x22, 0x33})
	want := slices.Concat(word32(0x11), word32(0), words64(uint64(address)), word32(0x3fc00000),
		word32(0x22), words64(0x33))
	driver, recorder := load(t, declarations)
	recorder.RecordMemory(10, 40)
	if err := driver.LaunchKernel(1, 1, 1, 0, &p); err != nil {
		t.Fatal(err)
	}
	seen := recorder.LastCall().Memory[10]
	option := func(i int) uint64 { return binary.NativeEndian.Uint64(seen[8*i:]) }
	if option(0) != 1 || option(2) != 2 || option(4) != 0 {
		t.Fatalf("LaunchKernel passed launch options %v, want options 1, 2 and 0", seen[:40])
	}
	// The launch has returned this memory to the pool, but no other launch has reused it yet.
	if size := dl.Load[uint64](uintptr(option(3))); size != uint64(len(want)) {
		t.Errorf("LaunchKernel passed size %d, want %d", size, len(want))
	}
	if got := dl.Load[[40]byte](uintptr(option(1))); !slices.Equal(got[:len(want)], want) {
		t.Errorf("LaunchKernel passed arguments %v, want %v", got[:len(want)], want)
	}
	defer func() {
		if recover() == nil {
			t.Error("LaunchKernel with too many arguments did not panic")
		}
	}()
	p = ParamsOf(new([MaxParams/8 + 1]uint64))
	_ = driver.LaunchKernel(1, 1, 1, 0, &p)
}
