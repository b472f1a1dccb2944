// Package controltest tests that implementations of control.Plane satisfy its contract.
//
// Run uses ranks in one process and in several processes, some of which it kills. These processes
// run the test binary again. A package that calls Run must therefore call Main at the start of
// TestMain.
package controltest

import (
	"context"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Member describes how a rank joins a group.
type Member struct {
	// Store is shared by all ranks, which are all in the group.
	Store driver.Store
	Group driver.GroupConfig
	// Timeout bounds waits for other ranks.
	Timeout time.Duration
	Late    driver.Late
}

// Rank returns the member's world rank.
func (m Member) Rank() int { return m.Group.Ranks[m.Group.Rank] }

// Join joins a group. Plane.Close must release everything that Join opened.
type Join func(ctx context.Context, m Member) (control.Plane, error)

type section struct {
	name  string
	tests []requirement
}

// requirement is a sentence of the contract and its test.
type requirement struct {
	sentence string
	test     func(t *testing.T, join Join)
}

// Run tests the whole contract.
func Run(t *testing.T, join Join) {
	t.Helper()
	for _, s := range []section{
		{"exchange", exchangeRequirements},
		{"values", valueRequirements},
		{"compare", compareRequirements},
		{"await", awaitRequirements},
		{"missing", missingRequirements},
		{"fault", faultRequirements},
		{"closing", closingRequirements},
		{"lost", lostRequirements},
		{"verdict", verdictRequirements},
	} {
		t.Run(s.name, func(t *testing.T) {
			for _, r := range s.tests {
				t.Run(r.sentence, func(t *testing.T) { r.test(t, join) })
			}
		})
	}
}
