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

// recorder records calls of a group into captures of other libraries. The locks of the group and
// the stream must be held during calls of its methods.
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

	// replayed reports whether another library has captured calls of the group. It may replay them at
	// any time, which symmem does not notice.
	replayed atomic.Bool
	captures memory.Holds
	// plain and windows report whether plain and window kernels of NCCL have been captured; guarded by
	// the group's lock.
	plain, windows bool
	// recordings numbers the captures of symmem and of other libraries. current is the recording of
	// the call being captured, or nil. Both are guarded by the group's lock.
	recordings direct.Recordings
	current    *direct.Recording
}

// recordingOf returns the recording of an adopted stream's capture.
func (r *recorder) recordingOf(s *stream.Stream) (*direct.Recording, error) {
	var capture cuda.Capture
	err := r.gpu.With(func(gpu *cuda.Driver) (err error) {
		capture, err = gpu.CaptureInfo(s.CUDA)
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("recording a collective: %w", err)
	case capture.Status == cuda.CaptureNone:
		return nil, fmt.Errorf("recording a collective: %w", driver.ErrNotCapturing)
	case capture.Status == cuda.CaptureInvalidated:
		return nil, fmt.Errorf("recording a collective: %w", cuda.ErrCaptureInvalidated)
	case !r.recordings.Has(capture.ID) && r.captures.Has(capture.ID):
		return nil, fmt.Errorf("recording a collective: group %s was recorded in %d other captures "+
			"since its last call in this one: %w", r.cfg.Name(), direct.OpenRecordings,
			driver.ErrUnsupported)
	}
	return r.recordings.Of(capture.ID), nil
}

// noteReplays records that another library captures calls of the group, so that the watcher also
// checks the reports of replayed kernels. It returns the fault that kernels have already reported,
// if any.
func (r *recorder) noteReplays() error {
	if !r.replayed.Swap(true) {
		r.busy.WakeWatcher()
	}
	return r.faults.checkKernels()
}

// compare compares a call being captured with those of other ranks, unless the call's kernels do
// that. It does not mark the stream as busy, because nothing runs, and CUDA must not be queried
// about a stream during a capture.
func (r *recorder) compare(call *driver.Call, kernels bool) error {
	if !r.check.Load() || kernels && r.direct.announcements != nil {
		return nil
	}
	ticket := r.plane.Submit()
	r.history.noteComparison(ticket)
	return r.comparer.compareNow(call, ticket)
}

// countUses keeps the objects that a call uses until the graph being captured is destroyed.
// usesNCCL reports whether NCCL launches kernels for the call.
func (r *recorder) countUses(
	s *stream.Stream, used []*memory.UseCount, path driver.Path, usesNCCL bool,
) error {
	hold, err := r.captures.For(s.CUDA)
	if hold == nil || err != nil {
		return err
	}
	hold.Use(used)
	if usesNCCL {
		r.plain = r.plain || path != driver.PathWindow
		r.windows = r.windows || path == driver.PathWindow
	}
	return nil
}
