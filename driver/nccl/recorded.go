package nccl

import (
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
	"symmem/internal/cuda"
)

// recorder puts calls of a group into captures of other libraries. Its methods are called with the
// group's lock held, and that of the stream.
type recorder struct {
	gpu      *gpu.GPU
	cfg      *driver.GroupConfig
	plane    control.Plane
	check    *atomic.Bool
	history  *history
	direct   *directPath
	busy     *stream.BusyStreams
	faults   *faults
	comparer *comparer

	// replayed reports whether another library has captured calls of the group. It may replay them
	// at any time, unseen.
	replayed atomic.Bool
	captures memory.Holds
	// plain and windows report whether captures have had such kernels of NCCL's; guarded by the
	// group's lock.
	plain, windows bool
	// recordings are those of this device and of other libraries, and current the one that the call
	// under way is put into; both are guarded by the group's lock.
	recordings direct.Recordings
	current    *direct.Recording
}

// recordingOf finds the capture that an adopted stream is in.
func (r *recorder) recordingOf(s *stream.Stream) (*direct.Recording, error) {
	var at cuda.Capture
	err := r.gpu.With(func(gpu *cuda.Driver) (err error) {
		at, err = gpu.CaptureInfo(s.CUDA)
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("recording a collective: %w", err)
	case at.Status == cuda.CaptureNone:
		return nil, fmt.Errorf("recording a collective: %w", driver.ErrNotCapturing)
	case at.Status == cuda.CaptureInvalidated:
		return nil, fmt.Errorf("recording a collective: %w", cuda.ErrCaptureInvalidated)
	case !r.recordings.Has(at.ID) && r.captures.Has(at.ID):
		return nil, fmt.Errorf("recording a collective: group %s has come to %d captures since its last "+
			"call in this one: %w", r.cfg.Name(), direct.OpenRecordings, driver.ErrUnsupported)
	}
	return r.recordings.Of(at.ID), nil
}

// noteReplays notes that another library captures calls of the group: from then on the watcher
// looks for reports of replays. It returns the fault that kernels have reported so far.
func (r *recorder) noteReplays() error {
	if !r.replayed.Swap(true) {
		r.busy.WakeWatcher()
	}
	return r.faults.checkKernels()
}

// compare compares a call that is put into a capture with those of other ranks, unless its kernels
// do. No stream is noted as having work: nothing runs, and CUDA must not be asked about a stream
// that is captured.
func (r *recorder) compare(call *driver.Call, kernels bool) error {
	if !r.check.Load() || kernels && r.direct.announcements != nil {
		return nil
	}
	ticket := r.plane.Submit()
	r.history.reach(ticket)
	return r.comparer.compareNow(call, ticket)
}

// countUses keeps what a call uses as long as the graph that it is put into. The call has kernels
// of NCCL's if nccl is set.
func (r *recorder) countUses(
	s *stream.Stream, used []*memory.UseCount, path driver.Path, nccl bool,
) error {
	h, err := r.captures.For(s.CUDA)
	if h == nil || err != nil {
		return err
	}
	h.Use(used)
	if nccl {
		r.plain = r.plain || path != driver.PathWindow
		r.windows = r.windows || path == driver.PathWindow
	}
	return nil
}
