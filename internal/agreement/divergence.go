package agreement

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"symmem/internal/ledger"
	"symmem/internal/ranklist"
)

// Kind classifies a divergence.
type Kind uint8

// The kinds of divergence, in the order in which they are checked.
const (
	// KindTag means that the ranks are in different operations.
	KindTag Kind = iota + 1
	// KindLedgers means that the ranks compare different pools.
	KindLedgers
	// KindPlacement means that the histories of a pool differ.
	KindPlacement
	// KindPending means that the histories agree but the segments to be registered differ.
	KindPending
	// KindCollective means that the histories agree but the collectives being called differ.
	KindCollective
)

var kindNames = [...]string{"", "operation", "pools", "placement", "pending", "collective"}

// String returns the name of k.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// Variant is an observation that some ranks share.
type Variant struct {
	// Ranks lists the ranks that share it.
	Ranks []int
	// What describes it; for an event it is [ledger.Event.String].
	What string
	// Site is its call site as file:line, or "".
	Site string
	// Event is the event, if HasEvent is set.
	Event    ledger.Event
	HasEvent bool
}

// DivergenceError reports how ranks that should agree differ. Its text is the same on every rank of
// the agreement.
type DivergenceError struct {
	// Group names the group whose ranks differ.
	Group string
	// Kind classifies the difference.
	Kind Kind
	// Ledger is the id of the pool, for KindPlacement and KindPending.
	Ledger uint64
	// Position is the position of the first differing event, for KindPlacement. If Last is greater,
	// that part of the history is no longer kept and the event lies between Position and Last.
	Position, Last uint64
	// Variants lists the different observations, ordered by lowest rank; at most 16.
	Variants []Variant
	// Others lists the ranks whose observations exceed that limit.
	Others []int
	// Deviant lists the ranks that differ from a majority of the ranks that took part. Without such
	// a majority it is empty: a low rank is not presumed right. Ranks that report no call while
	// others report different ones are neither counted nor deviant.
	Deviant []int
	// Why guesses the kind of difference, for KindPlacement.
	Why Why
	// Absent lists the ranks that did not take part in every round.
	Absent []int
	// Names names ranks and pools in the report. Ranks in the other fields are group ranks.
	Names Names
}

// Error returns the whole report as one paragraph.
func (d *DivergenceError) Error() string {
	var b strings.Builder
	b.WriteString(d.heading())
	for i, v := range d.Variants {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		fmt.Fprintf(&b, "%s %s %q", d.Names.ranks(v.Ranks), verb(v.Ranks, "has", "have"), v.What)
		if v.Site != "" {
			fmt.Fprintf(&b, " at %s", v.Site)
		}
	}
	if len(d.Others) > 0 {
		fmt.Fprintf(&b, "; %s %s another observation",
			d.Names.ranks(d.Others), verb(d.Others, "has", "have"))
	}
	b.WriteString(d.closing())
	return b.String()
}

func (d *DivergenceError) heading() string {
	switch d.Kind {
	case KindTag:
		return fmt.Sprintf("group %s: ranks are in different operations", d.Group)
	case KindLedgers:
		return fmt.Sprintf("group %s: ranks have different pools", d.Group)
	case KindPending:
		return fmt.Sprintf("group %s: ranks are about to register different segments of %s",
			d.Group, d.Pool())
	case KindCollective:
		return fmt.Sprintf("group %s: ranks call different collectives", d.Group)
	case KindPlacement:
	}
	if d.Last > d.Position {
		return fmt.Sprintf("group %s: ranks diverged in %s between events %d and %d, "+
			"which are no longer kept", d.Group, d.Pool(), d.Position, d.Last)
	}
	return fmt.Sprintf("group %s: ranks diverged in %s at event %d",
		d.Group, d.Pool(), d.Position)
}

// Pool names the pool, for KindPlacement and KindPending.
func (d *DivergenceError) Pool() string {
	if d.Kind != KindPlacement && d.Kind != KindPending {
		return ""
	}
	return d.Names.pool(d.Ledger)
}

// closing describes the deviating ranks and the kind of deviation, as far as they are known.
func (d *DivergenceError) closing() string {
	out := ""
	if d.Why == WhyHeld {
		out = "; " + d.Why.sentence(d.Names, nil, nil)
	} else if usual, deviant := d.contrast(); usual >= 0 && deviant >= 0 && d.Why != WhyUnknown {
		out = "; " + d.Why.sentence(d.Names, d.ranksLike(deviant), d.ranksLike(usual))
	} else if len(d.Deviant) > 0 {
		out = fmt.Sprintf("; %s %s from the majority",
			d.Names.short(d.Deviant), verb(d.Deviant, "deviates", "deviate"))
	}
	if d.Why != WhyHeld && d.has(ledger.KindFree) {
		out += "; if garbage collection makes that free, it comes at another time on each rank: " +
			"free the buffer by a call, at the same place of the program on all ranks"
	}
	if d.has(ledger.KindSegment) {
		out += "; segments differ where ranks request different sizes, or where a device has less " +
			"memory: then bound the pool by a capacity that every device has"
	}
	if len(d.Absent) > 0 {
		out += fmt.Sprintf("; %s did not take part", d.Names.ranks(d.Absent))
	}
	return out
}

// has reports whether some ranks have an event of the given kind where others have a different one.
func (d *DivergenceError) has(kind ledger.Kind) bool {
	return d.Kind == KindPlacement && slices.ContainsFunc(d.Variants, func(v Variant) bool {
		return v.HasEvent && v.Event.Kind == kind
	})
}

// ranksLike returns the ranks with the same observation as variant i, whatever their call sites.
func (d *DivergenceError) ranksLike(i int) []int {
	var out []int
	for _, v := range d.Variants {
		if v.What == d.Variants[i].What {
			out = append(out, v.Ranks...)
		}
	}
	slices.Sort(out)
	return out
}

// contrast returns the variant of the most ranks and the first variant that differs from it, or -1
// for a missing one. A tie is no majority; the lower rank then comes first, which only affects the
// wording.
func (d *DivergenceError) contrast() (usual, deviant int) {
	usual, deviant = -1, -1
	most := 0
	for i, v := range d.Variants {
		if n := len(d.ranksLike(i)); n > most && !d.abstains(v) {
			usual, most = i, n
		}
	}
	for i, v := range d.Variants {
		if v.What != d.Variants[usual].What && !d.abstains(v) {
			return usual, i
		}
	}
	return usual, deviant
}

// abstains reports whether a variant stands for ranks that report no call while others report
// different ones. A rank that was stopped by another rank's fault knows of no call in which it
// differs.
func (d *DivergenceError) abstains(v Variant) bool {
	return d.Kind == KindCollective && v.What == noCall && len(d.Variants) > 2
}

// conclude sets Deviant, given the number of ranks.
func (d *DivergenceError) conclude(ranks int) {
	usual, _ := d.contrast()
	for _, v := range d.Variants {
		if d.abstains(v) {
			ranks -= len(v.Ranks)
		}
	}
	if usual < 0 || 2*len(d.ranksLike(usual)) <= ranks {
		return
	}
	for _, v := range d.Variants {
		if v.What != d.Variants[usual].What && !d.abstains(v) {
			d.Deviant = append(d.Deviant, v.Ranks...)
		}
	}
	d.Deviant = append(d.Deviant, d.Others...)
	slices.Sort(d.Deviant)
}

func (m *Machine) newDivergence(kind Kind, id uint64) *DivergenceError {
	return &DivergenceError{
		Group: m.config.Group, Kind: kind, Ledger: id, Absent: m.absent, Names: m.config.Names,
	}
}

// differ ends the agreement with a divergence in contributions to the vote.
func (m *Machine) differ(
	kind Kind, id uint64, v variants, text func([]byte) (string, error),
) ([]byte, *Outcome, error) {
	d := m.newDivergence(kind, id)
	ranks := len(v.others)
	for _, one := range v.list {
		what, err := text(one.value)
		if err != nil {
			return nil, nil, err
		}
		d.Variants = append(d.Variants,
			Variant{Ranks: one.ranks, What: what, Site: string(one.note)})
		ranks += len(one.ranks)
	}
	d.Others = v.others
	d.conclude(ranks)
	return nil, &Outcome{Divergence: d, Absent: m.absent}, nil
}

func tagText(value []byte) (string, error) {
	if len(value) < 1 || len(value) > 1+MaxTag || value[0] > byte(Prefix) {
		return "", protocolError("decoding a tag")
	}
	return string(value[1:]), nil
}

// idsText lists the pools of a rank by their encoded ids.
func (n Names) idsText(value []byte) (string, error) {
	if len(value) == 0 {
		return "no pool", nil
	}
	pools := make([]string, 0, len(value)/8)
	for _, id := range words(value) {
		pools = append(pools, n.pool(id))
	}
	return strings.Join(pools, ", "), nil
}

func pendingText(value []byte) (string, error) {
	count := binary.LittleEndian.Uint64(value)
	return fmt.Sprintf("%s pending, digest %016x", ranklist.Plural(count, "segment"),
		binary.LittleEndian.Uint64(value[8:])), nil
}
