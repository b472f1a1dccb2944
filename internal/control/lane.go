package control

import (
	"context"
	"fmt"
	"time"

	"symmem/driver"
)

var laneNames = [driver.Lanes]string{
	"agreement", "background agreement", "comparison of splits", "fault report",
}

// ExchangeName names an exchange on a lane (an independent sequence of exchanges) in errors.
func ExchangeName(group driver.GroupConfig, lane driver.Lane) string {
	return laneNames[lane] + " of group " + group.Name()
}

// CheckExchange refuses unknown lanes and payloads that are too large.
func CheckExchange(lane driver.Lane, payload []byte) error {
	if lane < 0 || lane >= driver.Lanes || len(payload) > driver.MaxPayload {
		return fmt.Errorf("exchanging %d bytes on lane %d: at most %d bytes on %d lanes",
			len(payload), lane, driver.MaxPayload, driver.Lanes)
	}

	return nil
}

// WithDefaultTimeout adds a deadline after d unless ctx has one.
func WithDefaultTimeout(
	ctx context.Context, d time.Duration,
) (context.Context, context.CancelFunc) {
	if _, hasDeadline := ctx.Deadline(); hasDeadline {
		return context.WithCancel(ctx)
	}

	return context.WithTimeout(ctx, d)
}
