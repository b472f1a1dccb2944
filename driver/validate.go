package driver

import (
	"fmt"
	"math"
)

const (
	// MaxCount is the maximum Call.Count. An int64 can hold the size in bytes of up to 4095 such
	// parts.
	MaxCount = 1 << 48
	// MaxTag is the largest tag of a message.
	MaxTag = 1<<31 - 1
)

// Validate checks the rules for calls that all backends share. An error matches ErrOutOfRange if
// the count is too large, and otherwise ErrInvalid.
func (c *Call) Validate(ranks, rank int) error {
	if err := c.validateBasics(); err != nil {
		return err
	}

	if err := c.validateRoot(ranks, rank); err != nil {
		return err
	}

	if err := c.validateFactor(); err != nil {
		return err
	}

	if err := c.validateMessage(); err != nil {
		return err
	}

	if err := c.validateArguments(ranks, rank); err != nil {
		return err
	}

	send, recv := c.Spans(ranks, rank)
	if rangesOverlap(c.Send, send, c.Recv, recv) && !c.InPlace(rank) {
		return invalidError("send and receive buffers overlap, but the call is not in place")
	}

	return nil
}

func (c *Call) validateBasics() error {
	switch {
	case c.Operation >= Operations:
		return invalidError("unknown operation %d", c.Operation)
	case !c.DataType.Valid():
		return invalidError("unknown type %d", c.DataType)
	case c.ReduceOp >= ReduceOps:
		return invalidError("unknown reduction %d", c.ReduceOp)
	case c.Operation.Reduces() && !c.ReduceOp.Accepts(c.DataType):
		return invalidError("reduction %v does not support %v", c.ReduceOp, c.DataType)
	case c.Count < 0:
		return invalidError("negative count %d", c.Count)
	case c.Count > MaxCount:
		return fmt.Errorf("count %d: %w", c.Count, ErrOutOfRange)
	}

	return nil
}

// validateRoot checks Root, which is the peer in a Send or Recv.
func (c *Call) validateRoot(ranks, rank int) error {
	isFromAny := c.Operation == Recv && c.Root == AnySource
	switch {
	case isFromAny && ranks > 1:
		return nil
	case c.Root < 0 || c.Root >= ranks:
		return invalidError("root or peer %d is not in a group of %d ranks", c.Root, ranks)
	case c.Operation.PointToPoint() && c.Root == rank:
		return invalidError("rank %d is its own peer", c.Root)
	}

	return nil
}

func (c *Call) validateFactor() error {
	usesFactor := c.Operation.Reduces() && c.ReduceOp.HasFactor()
	switch {
	case usesFactor && !isValidFactor(c.Factor):
		return invalidError("factor %v: %v needs a finite factor other than 0", c.Factor, c.ReduceOp)
	case c.Factor != 0 && !usesFactor:
		return invalidError("factor %v: only %v accepts a factor", c.Factor, PremulSum)
	}

	return nil
}

func isValidFactor(factor float64) bool {
	return factor != 0 && !math.IsNaN(factor) && !math.IsInf(factor, 0)
}

// validateMessage checks the fields that only a Send or Recv uses.
func (c *Call) validateMessage() error {
	switch {
	case c.Tag < 0 || c.Tag > MaxTag:
		return invalidError("tag %d is not between 0 and %d", c.Tag, MaxTag)
	case c.Tag > 0 && !c.Operation.PointToPoint():
		return invalidError("tag %d: only messages have tags", c.Tag)
	case c.Arrived != nil && c.Operation != Recv:
		return invalidError("Arrived is set, but only %v calls it", Recv)
	}

	return nil
}

// validateArguments checks the additional arguments Splits, Norm and Route. An operation uses at
// most one of them.
func (c *Call) validateArguments(ranks, rank int) error {
	hasSplits := c.Splits != nil
	hasNorm := c.Norm != nil
	hasRoute := c.Route != nil
	needsSplits := c.Operation.HasSplits()
	needsNorm := c.Operation.HasNorm()
	needsRoute := c.Operation == Dispatch || c.Operation == Combine
	switch {
	case hasSplits != needsSplits:
		return invalidError("%v, %v and %v require Splits, and no other operation accepts them",
			AllToAllV, AllGatherV, ReduceScatterV)
	case hasNorm != needsNorm:
		return invalidError("%v and %v require a Norm, and no other operation accepts one",
			AllReduceRMSNorm, ReduceScatterRMSNorm)
	case hasRoute != needsRoute:
		return invalidError("%v and %v require a Route, and no other operation accepts one", Dispatch,
			Combine)
	}

	switch {
	case hasRoute:
		return c.Route.validate(c, ranks)
	case hasSplits:
		return c.validateSplits(ranks, rank)
	case hasNorm:
		return c.Norm.validate(c, ranks, rank)
	}

	return nil
}

// validateSplits checks Splits, and that Count is this rank's count in them.
func (c *Call) validateSplits(ranks, rank int) error {
	if err := c.Splits.Validate(c.Operation, ranks); err != nil {
		return err
	}

	if want := c.Splits.CountOf(c.Operation, rank); c.Count != want {
		return invalidError("count %d of %v does not equal this rank's count %d in the splits",
			c.Count, c.Operation, want)
	}

	return nil
}

// rangesOverlap reports whether two ranges of addresses overlap. An empty range never overlaps.
func rangesOverlap(a uintptr, aBytes int64, b uintptr, bBytes int64) bool {
	if aBytes <= 0 || bBytes <= 0 {
		return false
	}

	return a < b+uintptr(bBytes) && b < a+uintptr(aBytes)
}

// invalidError returns a formatted error that matches ErrInvalid.
func invalidError(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrInvalid)
}
