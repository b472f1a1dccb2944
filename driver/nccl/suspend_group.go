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

// suspender releases the memory of a communicator and of its levels until they are resumed.
type suspender struct {
	gpu          *gpu.GPU
	cfg          *driver.GroupConfig
	plane        control.Plane
	mu           *groupLock
	comm         *ncclComm
	exchange     *direct.Exchange
	messages     p2p.Suspender
	levelTargets func() []suspendTarget
}

// suspendTarget is the group's own communicator or one of its levels.
type suspendTarget struct {
	*suspender
	members []int // group ranks
}

// targets returns the group's own communicator and its levels, in the same order on all ranks.
func (s *suspender) targets() []suspendTarget {
	members := make([]int, len(s.cfg.Ranks))
	for r := range members {
		members[r] = r
	}
	return append([]suspendTarget{{s, members}}, s.levelTargets()...)
}

// PrepareSuspend returns ErrBusy if a message of this rank has not been delivered, or if abandoned
// work may still be running.
func (s *suspender) PrepareSuspend() error {
	if s.gpu.MustKeepMemory() {
		return fmt.Errorf("a kernel of a closed stream or group is still running: %w", driver.ErrBusy)
	}
	return s.messages.PrepareSuspend()
}

// Suspend releases the exchange memory and the staging memory of messages. If NCCL supports it,
// Suspend also releases the memory of NCCL's communicators. The field Released does not include the
// memory of NCCL's communicators.
func (s *suspender) Suspend(ctx context.Context) (driver.Suspension, error) {
	ctx, cancel := control.WithDefaultTimeout(ctx, s.cfg.Timeout.Get())
	defer cancel()
	var released driver.Suspension
	var errs []error
	all := s.targets()
	for _, c := range all {
		exchanged, err := c.exchange.Suspend()
		staged, stagingErr := c.messages.Suspend()
		released.Released += exchanged + staged
		errs = append(errs, err, stagingErr)
	}
	err := errors.Join(errs...)
	if !s.comm.library.CanSuspend() {
		released.Kept = append(released.Kept, s.keptByNCCL(len(all)))
	} else if err == nil {
		err = s.callNCCL(ctx, all, (*ncclComm).suspend)
	}
	if err != nil {
		return released, s.plane.Fail(fmt.Errorf("suspending group %s: %w", s.cfg.Name(), err))
	}
	return released, nil
}

func (s *suspender) keptByNCCL(communicators int) string {
	_, text := s.comm.library.Version()
	what := "the communicator"
	if communicators > 1 {
		what = fmt.Sprintf("the %d communicators", communicators)
	}
	return fmt.Sprintf("memory of %s of NCCL %s, which cannot release it (ncclCommSuspend needs %s)",
		what, text, nccl.VersionText(nccl.VersionSuspend))
}

// callNCCL makes the group fail when ctx is done, because NCCL may wait for other ranks forever.
func (s *suspender) callNCCL(
	ctx context.Context, all []suspendTarget, call func(*ncclComm) error,
) error {
	begin := time.Now()
	stop := context.AfterFunc(ctx, func() {
		_ = s.plane.Fail(waitError(ctx, "suspending or resuming NCCL in group "+s.cfg.Name(), begin))
	})
	defer stop()
	for _, c := range all {
		if err := c.withLock(func() error { return call(c.comm) }); err != nil {
			return err
		}
	}
	return nil
}

// withLock runs do while it holds the communicator's lock, so that the teardown does not free
// addresses in the meantime. If the communicator has failed, withLock returns the cause instead.
func (s *suspender) withLock(do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.plane.Cause(); err != nil {
		return err
	}
	return do()
}

// resumeMessage is sent to the other ranks when a group resumes.
type resumeMessage struct {
	Refusal string `json:"refusal,omitempty"`
	// Exchange describes the exchange memory of each of the rank's communicators.
	Exchange [][]byte `json:"exchange,omitempty"`
}

// Resume allocates this rank's memory and maps the peers' memory, all at the old addresses.
func (s *suspender) Resume(ctx context.Context) error {
	ctx, cancel := control.WithDefaultTimeout(ctx, s.cfg.Timeout.Get())
	defer cancel()
	all := s.targets()
	memory, err := allocate(all)
	if errors.Is(err, driver.ErrClosed) {
		return s.plane.Fail(fmt.Errorf("resuming group %s: %w", s.cfg.Name(), err))
	}
	defer memory.withdraw()
	messages, refusal, agreeErr := s.exchangeResumeMessages(ctx, memory, err)
	switch {
	case agreeErr != nil:
		return s.plane.Fail(fmt.Errorf("resuming group %s: %w", s.cfg.Name(), agreeErr))
	case refusal != nil && err == nil:
		return errors.Join(refusal, memory.discard())
	case refusal != nil:
		return refusal
	}
	err = memory.mapPeers(ctx, messages)
	if err == nil && s.comm.library.CanSuspend() {
		err = s.callNCCL(ctx, all, (*ncclComm).resume)
	}
	if err == nil { // export the memory until all ranks have mapped it
		_, err = s.plane.Exchange(ctx, driver.LaneControl, nil)
	}
	if err != nil {
		return s.plane.Fail(fmt.Errorf("resuming group %s: %w", s.cfg.Name(), err))
	}
	return nil
}

// exchangeResumeMessages returns the Exchange field of every rank's message. refusal is that of the
// first rank that cannot resume.
func (s *suspender) exchangeResumeMessages(
	ctx context.Context, memory resumedMemory, allocateErr error,
) (messages [][][]byte, refusal, err error) {
	own := resumeMessage{Exchange: memory.messages()}
	if allocateErr != nil {
		own.Refusal = allocateErr.Error()
		own.Refusal = own.Refusal[:min(len(own.Refusal), driver.MaxPayload/8)]
	}
	encoded, err := json.Marshal(own)
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
		if err == nil && message.Refusal == "" && len(message.Exchange) != len(s.targets()) {
			err = fmt.Errorf("it describes %d communicators instead of %d", len(message.Exchange),
				len(s.targets()))
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

type resumedMemory []resumedPart

type resumedPart struct {
	suspendTarget
	exchange *direct.Allocation
}

// allocate allocates this rank's memory. If it returns an error, nothing stays allocated.
func allocate(all []suspendTarget) (resumedMemory, error) {
	var memory resumedMemory
	for _, c := range all {
		err := c.messages.Allocate()
		if err == nil {
			part := resumedPart{suspendTarget: c}
			if part.exchange, err = c.exchange.Allocate(); err == nil {
				memory = append(memory, part)
				continue
			}
			err = errors.Join(err, c.messages.Deallocate())
		}
		return nil, errors.Join(err, memory.discard())
	}
	return memory, nil
}

func (m resumedMemory) messages() (messages [][]byte) {
	for _, part := range m {
		messages = append(messages, part.exchange.Message())
	}
	return messages
}

// mapPeers expects the messages of each rank of the group.
func (m resumedMemory) mapPeers(ctx context.Context, messages [][][]byte) error {
	for i, part := range m {
		var memberMessages [][]byte
		for _, r := range part.members {
			memberMessages = append(memberMessages, messages[r][i])
		}
		err := part.withLock(func() error {
			if err := part.exchange.MapPeers(ctx, memberMessages); err != nil {
				return err
			}
			return part.suspendTarget.messages.MapAgain(ctx)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (m resumedMemory) discard() error {
	var errs []error
	for _, part := range m {
		errs = append(errs, part.exchange.Discard(), part.suspendTarget.messages.Deallocate())
	}
	return errors.Join(errs...)
}

func (m resumedMemory) withdraw() {
	for _, part := range m {
		part.exchange.Withdraw()
	}
}
