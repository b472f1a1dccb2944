package nccl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/p2p"
	"symmem/internal/control"
	"symmem/internal/nccl"
)

// suspender releases and restores the memory of the targets: a group's communicator and its levels
// (communicators within a machine and between machines).
type suspender struct {
	gpu          *gpu.GPU
	cfg          *driver.GroupConfig
	plane        control.Plane
	mu           *groupLock
	comm         *ncclComm
	exchange     *direct.Exchange // memory of symmem's own kernels
	messages     p2p.Suspender    // staging memory of messages
	levelTargets func() []suspendTarget
}

type suspendTarget struct {
	*suspender
	groupRanks []int // the ranks of the target, as group ranks of the group
}

// listTargets returns the group's communicator and its levels, in the same order on all ranks.
func (s *suspender) listTargets() []suspendTarget {
	groupRanks := make([]int, len(s.cfg.Ranks))
	for r := range groupRanks {
		groupRanks[r] = r
	}

	return append([]suspendTarget{{s, groupRanks}}, s.levelTargets()...)
}

// PrepareSuspend checks whether the group can be suspended. It returns ErrBusy if a message of
// this rank has not been delivered, or if a kernel of a closed stream or group may still be
// running.
func (s *suspender) PrepareSuspend() error {
	if s.gpu.MustKeepMemory() {
		return fmt.Errorf("a kernel of a closed stream or group is still running: %w", driver.ErrBusy)
	}

	return s.messages.PrepareSuspend()
}

// Suspend releases the exchange memory (of symmem's own kernels), the staging memory of messages
// and, if this version of NCCL can release it, the memory of NCCL's communicators. The result does
// not count NCCL's memory. An error makes the group fail.
func (s *suspender) Suspend(ctx context.Context) (driver.Suspension, error) {
	ctx, cancel := control.WithDefaultTimeout(ctx, s.cfg.Timeout.Get())
	defer cancel()
	var result driver.Suspension
	var errs []error
	targets := s.listTargets()
	for _, target := range targets {
		exchangeBytes, err := target.exchange.Suspend()
		stagingBytes, stagingErr := target.messages.Suspend()
		result.Released += exchangeBytes + stagingBytes
		errs = append(errs, err, stagingErr)
	}

	err := errors.Join(errs...)
	if !s.comm.library.CanSuspend() {
		result.Kept = append(result.Kept, s.describeKeptMemory(len(targets)))
	} else if err == nil {
		err = s.callNCCL(ctx, targets, (*ncclComm).suspend)
	}

	if err != nil {
		return result, s.plane.Fail(fmt.Errorf("suspending group %s: %w", s.cfg.Name(), err))
	}

	return result, nil
}

func (s *suspender) describeKeptMemory(communicatorCount int) string {
	_, version := s.comm.library.Version()
	owner := "the communicator"
	if communicatorCount > 1 {
		owner = fmt.Sprintf("the %d communicators", communicatorCount)
	}

	return fmt.Sprintf("memory of %s of NCCL %s, which cannot release it (ncclCommSuspend needs %s)",
		owner, version, nccl.VersionText(nccl.VersionSuspend))
}

// callNCCL calls call with NCCL's communicator of each target. It makes the group fail when ctx is
// done, because NCCL might wait forever.
func (s *suspender) callNCCL(
	ctx context.Context, targets []suspendTarget, call func(*ncclComm) error,
) error {
	startTime := time.Now()
	stop := context.AfterFunc(ctx, func() {
		callText := "suspending or resuming NCCL in group " + s.cfg.Name()
		_ = s.plane.Fail(waitError(ctx, callText, startTime)) // the teardown then ends the call
	})
	defer stop()
	for _, target := range targets {
		if err := target.withLock(func() error { return call(target.comm) }); err != nil {
			return err
		}
	}

	return nil
}

// withLock calls call with the communicator's lock held, so that the teardown does not free
// addresses meanwhile. If the group has failed, withLock returns the cause instead.
func (s *suspender) withLock(call func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.plane.Cause(); err != nil {
		return err
	}

	return call()
}

type resumeMessage struct {
	// Refusal explains why the rank could not allocate memory, or is "".
	Refusal string `json:"refusal,omitempty"`
	// Exchange holds, for each communicator in listTargets, what other ranks need to map this rank's
	// exchange memory.
	Exchange [][]byte `json:"exchange,omitempty"`
}

// Resume allocates this rank's memory again and maps the other ranks' memory at the old addresses.
// If a rank cannot allocate its memory, Resume returns ErrOutOfMemory on all ranks and the group
// stays suspended. Any other error makes the group fail.
func (s *suspender) Resume(ctx context.Context) error {
	ctx, cancel := control.WithDefaultTimeout(ctx, s.cfg.Timeout.Get())
	defer cancel()
	targets := s.listTargets()
	allocations, allocateErr := allocateTargets(targets)
	if errors.Is(allocateErr, driver.ErrClosed) {
		return s.plane.Fail(fmt.Errorf("resuming group %s: %w", s.cfg.Name(), allocateErr))
	}

	defer allocations.endExports()
	messages, refusal, exchangeErr := s.exchangeResumeMessages(ctx, allocations, allocateErr)
	switch {
	case exchangeErr != nil:
		return s.plane.Fail(fmt.Errorf("resuming group %s: %w", s.cfg.Name(), exchangeErr))
	case refusal != nil && allocateErr == nil:
		return errors.Join(refusal, allocations.discard())
	case refusal != nil:
		return refusal // after allocateErr, nothing is allocated
	}

	err := allocations.mapPeers(ctx, messages)
	if err == nil && s.comm.library.CanSuspend() {
		err = s.callNCCL(ctx, targets, (*ncclComm).resume)
	}

	if err == nil { // the memory must stay exported until all ranks have mapped it
		_, err = s.plane.Exchange(ctx, driver.LaneControl, nil)
	}

	if err != nil {
		return s.plane.Fail(fmt.Errorf("resuming group %s: %w", s.cfg.Name(), err))
	}

	return nil
}

// exchangeResumeMessages sends a resumeMessage to all ranks and returns the Exchange of each
// rank's message, by group rank. refusal is nil if all ranks have allocated memory, and otherwise
// has the reason of the first rank that has not.
func (s *suspender) exchangeResumeMessages(
	ctx context.Context, allocations resumeAllocations, allocateErr error,
) (messages [][][]byte, refusal, err error) {
	const maxRefusalBytes = driver.MaxPayload / 8 // leaves room for escapes in JSON
	ownMessage := resumeMessage{Exchange: allocations.encodeMessages()}
	if allocateErr != nil {
		text := allocateErr.Error()
		ownMessage.Refusal = text[:min(len(text), maxRefusalBytes)]
	}

	encoded, err := json.Marshal(ownMessage)
	if err != nil {
		return nil, nil, err
	}

	received, err := s.plane.Exchange(ctx, driver.LaneControl, encoded)
	if err != nil {
		return nil, nil, err
	}

	for r, encoded := range received {
		var message resumeMessage
		err := json.Unmarshal(encoded, &message)
		if err == nil && message.Refusal == "" && len(message.Exchange) != len(s.listTargets()) {
			err = fmt.Errorf("got %d communicators, want %d", len(message.Exchange),
				len(s.listTargets()))
		}

		if err != nil {
			return nil, nil, fmt.Errorf("decoding the message of rank %d: %w", s.cfg.Ranks[r], err)
		}

		if message.Refusal != "" && refusal == nil {
			refusal = fmt.Errorf("rank %d: %s: %w", s.cfg.Ranks[r], control.Printable(message.Refusal),
				driver.ErrOutOfMemory)
		}

		messages = append(messages, message.Exchange)
	}

	return messages, refusal, nil
}

type resumeAllocations []resumeAllocation

type resumeAllocation struct {
	suspendTarget
	exchange *direct.Allocation // hides suspender.exchange
}

// allocateTargets allocates the memory of all targets. If it returns an error, no memory is
// allocated.
func allocateTargets(targets []suspendTarget) (resumeAllocations, error) {
	var allocations resumeAllocations
	for _, target := range targets {
		err := target.messages.Allocate()
		if err == nil {
			allocation := resumeAllocation{suspendTarget: target}
			if allocation.exchange, err = target.exchange.Allocate(); err == nil {
				allocations = append(allocations, allocation)
				continue
			}

			err = errors.Join(err, target.messages.Deallocate())
		}

		return nil, errors.Join(err, allocations.discard())
	}

	return allocations, nil
}

func (allocations resumeAllocations) encodeMessages() (messages [][]byte) {
	for _, allocation := range allocations {
		messages = append(messages, allocation.exchange.EncodeMessage())
	}

	return messages
}

// mapPeers maps the memory of the other ranks. messages[r][i] is the message of group rank r for
// target i.
func (allocations resumeAllocations) mapPeers(ctx context.Context, messages [][][]byte) error {
	for i, allocation := range allocations {
		var targetMessages [][]byte // by rank of the target
		for _, r := range allocation.groupRanks {
			targetMessages = append(targetMessages, messages[r][i])
		}

		err := allocation.withLock(func() error {
			if err := allocation.exchange.MapPeers(ctx, targetMessages); err != nil {
				return err
			}

			return allocation.suspendTarget.messages.MapAgain(ctx)
		})
		if err != nil {
			return err
		}
	}

	return nil
}

func (allocations resumeAllocations) discard() error {
	var errs []error
	for _, allocation := range allocations {
		errs = append(errs, allocation.exchange.Discard(),
			allocation.suspendTarget.messages.Deallocate())
	}

	return errors.Join(errs...)
}

func (allocations resumeAllocations) endExports() {
	for _, allocation := range allocations {
		allocation.exchange.EndExport()
	}
}
