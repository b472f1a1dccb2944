package nccl

import (
	"errors"

	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// code is what a device has loaded of one object of kernels. Its methods are called on a thread of
// the device.
type code struct {
	// object gives the object for a GPU of a compute capability.
	object func(major, minor int) ([]byte, error)

	mu        ranked.Mutex[codeMu]
	module    cuda.Module              // guarded by mu; loaded at the first use
	functions map[string]cuda.Function // guarded by mu
	// overlaps tells that kernels can be started before those ahead of them have ended, and wait for
	// these. It is set by load.
	overlaps bool
}

// load brings the kernels onto the GPU: all of them, since one that came at its first launch could
// wait for a kernel that does not end. Where the process has such a kernel already they are left to
// their launches: to bring them here could wait for ever. (On an H200 with driver 580 such a launch
// returns, and the wait for it has a deadline; CUDA does not promise either.)
func (k *code) load(d *Device) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.module != 0 {
		return nil
	}
	major, minor, err := d.gpu.ComputeCapability()
	if err != nil {
		return err
	}
	if k.overlaps, err = d.gpu.LaunchesOverlap(); err != nil {
		return err
	}
	k.overlaps = k.overlaps && kernels.Wait(major)
	object, err := k.object(major, minor)
	if err != nil {
		return err
	}
	module, err := d.cuda.ModuleLoadData(object)
	if err != nil {
		return err
	}
	if !stuck.Load() {
		err = d.cuda.ModuleLoadFunctions(module)
	}
	if err != nil {
		return errors.Join(err, d.cuda.ModuleUnload(module))
	}
	k.module, k.functions = module, map[string]cuda.Function{}
	return nil
}

// function finds a kernel by its name.
func (k *code) function(d *Device, name string) (cuda.Function, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, known := k.functions[name]
	if known {
		return f, nil
	}
	if k.module == 0 {
		return 0, errors.New("the kernels are not loaded")
	}
	f, err := d.cuda.ModuleGetFunction(k.module, name)
	if err == nil {
		k.functions[name] = f
	}
	return f, err
}

// unload gives the kernels back.
func (k *code) unload(d *Device) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.module == 0 {
		return nil
	}
	module := k.module
	k.module, k.functions = 0, nil
	return d.cuda.ModuleUnload(module)
}
