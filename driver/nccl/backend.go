package nccl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control/shm"
	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/mps"
	"symmem/internal/nccl"
	"symmem/internal/scatter"
	"symmem/internal/sys"
)

// Backend opens GPUs.
type Backend struct{}

// Name returns "nccl".
func (Backend) Name() string { return "nccl" }

// Available reports whether this machine has a GPU and NCCL: nil, or an error that says what is
// missing. It loads the libraries and makes no context.
func (Backend) Available() error {
	driver, err := loadDriver()
	if err != nil {
		return err
	}
	n, err := driver.DeviceCount()
	if err != nil {
		return err
	}
	if n == 0 {
		return errors.New("the driver shows no GPU")
	}
	_, err = nccl.Load()
	return err
}

// LocalRanks is the number of GPUs that this process may see.
func (Backend) LocalRanks() (int, error) {
	library, err := loadDriver()
	if err != nil {
		return 0, withAdvice(err)
	}
	return library.DeviceCount()
}

// loadDriver opens CUDA, with the variables set that it and NCCL read.
func loadDriver() (*cuda.Driver, error) {
	if err := setDefaults(); err != nil {
		return nil, err
	}
	return cuda.Load()
}

// setDefaults sets what CUDA and NCCL read, once, before any rank of the process is in a library
// that reads variables: libc's environment has no lock.
//
// NCCL makes connections when a communicator is made: made at the first collective, as newer
// versions do, they would keep a launch waiting for ranks that have not come. CUDA gets as many
// queues to the GPU as it can have: streams that share one wait for each other, so a stream that
// waits for a message may hold up what its sender waits for. On one H100 with 4 ranks, random
// programs of messages on 3 streams hung with CUDA's own number, and did not with 32. Under MPS,
// whose clients have 96 queues together, it is left to the user.
var setDefaults = sync.OnceValue(func() error {
	err := setDefault("NCCL_RUNTIME_CONNECT", "0")
	if mps.Running(os.Getenv) {
		return err
	}
	return errors.Join(err, setDefault("CUDA_DEVICE_MAX_CONNECTIONS", "32"))
})

// setDefault sets a variable unless the user has.
func setDefault(name, value string) error {
	if os.Getenv(name) != "" {
		return nil
	}
	return dl.Setenv(name, value)
}

// Open opens the GPU of this rank: that of its number among the ranks of its machine.
func (Backend) Open(ctx context.Context, cfg driver.Config) (driver.Device, error) {
	if cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size || cfg.LocalRank < 0 ||
		cfg.Timeout <= 0 || cfg.Store == nil {
		return nil, fmt.Errorf("opening a GPU: rank %d of %d, local rank %d, timeout %v: invalid",
			cfg.Rank, cfg.Size, cfg.LocalRank, cfg.Timeout)
	}
	d := &Device{
		cfg: cfg, communicators: map[*communicator]struct{}{},
		collectives: gpu.Code{Object: kernels.Object},
	}
	d.members.cfg = &d.cfg
	if err := d.open(ctx); err != nil {
		// The others do not wait for this rank then.
		err = errors.Join(fmt.Errorf("opening a GPU: %w", err),
			d.publish(ctx, &member{Failed: err.Error()}))
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// withAdvice says what to do where this machine has no GPU, or lacks what takes one.
func withAdvice(err error) error {
	return fmt.Errorf("%w: %w; symmem doctor says what this machine lacks, and the backend \"host\" "+
		"needs no GPU", driver.ErrUnsupported, err)
}

// open makes the device what it has to be.
func (d *Device) open(ctx context.Context) error {
	// This comes first, since ranks wait in it for rank 0, whose GPU may be the one that fails.
	var err error
	if d.machine, err = shm.Open(ctx, d.cfg); err != nil {
		return err
	}
	library, err := loadDriver()
	if err != nil {
		return withAdvice(err)
	}
	if d.nccl, err = nccl.Load(); err != nil {
		return withAdvice(err)
	}
	device, err := choose(library, &d.cfg)
	if err != nil {
		return err
	}
	if d.gpu, err = gpu.Open(library, device, d.cfg.Timeout); err != nil {
		return err
	}
	d.anywhere = d.nccl.After(d.gpu.Entry())
	d.info = driver.Info{Backend: "nccl", Name: d.gpu.Model, Granularity: d.gpu.Granularity}
	d.exporter = memory.Exporter{GPU: d.gpu, Machine: d.machine}
	d.memory = memory.New(d.gpu, scatter.New(d.cfg.Scatter, d.cfg.Rank, d.gpu.Granularity))
	d.streams = &stream.Streams{
		GPU: d.gpu, Groups: d.groups, NewCalls: func() stream.Calls { return newCalls(d) },
	}
	d.messages.GPU, d.messages.Streams, d.messages.Exporter = d.gpu, d.streams, &d.exporter
	d.messages.Copies.Object = kernels.MessageObject
	return d.publishMember(ctx)
}

// publishMember finds out what the others need to know of this rank, and publishes it.
func (d *Device) publishMember(ctx context.Context) error {
	boot, err := sys.BootID()
	if err != nil {
		return err
	}
	machine, err := machineOf(d.cfg.Rank, boot)
	if err != nil {
		return err
	}
	uuid, err := d.gpu.UUID()
	if err != nil {
		return err
	}
	code, _ := d.nccl.Version()
	d.self = member{
		Machine: machine, Boot: boot, GPU: uuid, Process: process, Name: d.info.Name, NCCL: code,
		NoFabric: d.gpu.NoFabric,
	}
	// Now, since CUDA may wait for streams to load a kernel, which may wait for messages.
	if err := d.gpu.Do(func() error { return d.messages.Copies.Load(d.gpu) }); err != nil {
		d.self.NoKernels = err.Error()
	}
	return d.publish(ctx, &d.self)
}

// publish stores what the others are to know of this rank.
func (d *Device) publish(ctx context.Context, m *member) error {
	value, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return d.cfg.Store.Set(ctx, memberKey(d.cfg.Rank), value)
}
