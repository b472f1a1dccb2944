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

// recorder adds calls of a group to CUDA graphs that other libraries capture. Callers must hold the
// locks of the group and the stream.
type recorder struct {
	gpu               *gpu.GPU
	cfg               *driver.GroupConfig
	plane             control.Plane
	comparisonEnabled *atomic.Bool
	history           *history
	direct            *directPath
	busy              *stream.BusyStreams
	faults            *faults
	comparer          *comparer

	wasCaptured atomic.Bool // by another library, which can replay calls at any time
	graphHolds  memory.Holds

	// Window kernels are NCCL kernels that access windows (registered memory).
	capturedPlainKernels, capturedWindowKernels bool
	recordings                                  direct.Recordings
	currentRecording                            *direct.Recording
}

func (r *recorder) findRecording(s *stream.Stream) (*direct.Recording, error) {
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
		return nil, fmt.Errorf("recording a collective: the capture was invalidated, perhaps by a CUDA "+
			"call of another thread that is not allowed in global mode: capture in thread-local mode: %w",
			cuda.ErrCaptureInvalidated)
	case !r.recordings.IsKnown(capture.ID) && r.graphHolds.HasCapture(capture.ID):
		return nil, fmt.Errorf("recording a collective: group %s was recorded in %d other captures "+
			"since its last call in this one: %w", r.cfg.Name(), direct.MaxOpenRecordings,
			driver.ErrUnsupported)
	}
	return r.recordings.GetOrBegin(capture.ID), nil
}

// markCaptured must be called before another library captures a call.
func (r *recorder) markCaptured() error {
	if !r.wasCaptured.Swap(true) {
		r.busy.WakeWatcher()
	}
	return r.faults.checkKernels()
}

// compare does not mark the stream as busy, because a capturing stream cannot be queried.
func (r *recorder) compare(call *driver.Call, kernelsWillCompare bool) error {
	if !r.comparisonEnabled.Load() || kernelsWillCompare && r.direct.announcements != nil {
		return nil
	}
	ticket := r.plane.Submit()
	r.history.recordComparison(ticket)
	return r.comparer.compareOverPlane(call, ticket)
}

// holdUsedObjects keeps objects alive until the graph is destroyed.
func (r *recorder) holdUsedObjects(
	s *stream.Stream, used []*memory.UseCount, path driver.Path, usesNCCL bool,
) error {
	hold, err := r.graphHolds.GetOrBegin(s.CUDA)
	if hold == nil || err != nil {
		return err
	}
	hold.AddUses(used)
	if usesNCCL && path != driver.PathWindow {
		hold.AddPlainUses(used)
	}
	if usesNCCL {
		r.capturedPlainKernels = r.capturedPlainKernels || path != driver.PathWindow
		r.capturedWindowKernels = r.capturedWindowKernels || path == driver.PathWindow
	}
	return nil
}
