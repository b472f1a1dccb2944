package message

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type step struct {
	event string
	apply func(m *Matcher[string]) []Claim[string]
	want  string
}

func postStep(r string, tag, source int, want string) step {
	return step{
		fmt.Sprintf("receive %s with tag %d from %d", r, tag, source),
		func(m *Matcher[string]) []Claim[string] { return m.Post(r, tag, source, 0) }, want,
	}
}

func arriveStep(source, tag int, number uint64, want string) step {
	return step{
		fmt.Sprintf("message %d from %d with tag %d", number, source, tag),
		func(m *Matcher[string]) []Claim[string] {
			return m.Arrive(Arrival{Source: source, Tag: tag, Number: number})
		}, want,
	}
}

// formatClaims returns, for example, "a=3:1 " if receive a claims message 1 from source 3.
func formatClaims(claims []Claim[string]) string {
	var all string
	for _, c := range claims {
		all += fmt.Sprintf("%s=%d:%d ", c.Receive, c.Source, c.Number)
	}
	return all
}

func TestMessagesAreClaimedInCallOrder(t *testing.T) {
	for _, row := range []struct {
		name      string
		steps     []step
		unclaimed string
	}{
		{"a receive from a source claims its next number before it arrives", []step{
			postStep("a", 0, 3, "a=3:1 "), postStep("b", 0, 3, "b=3:2 "), arriveStep(3, 0, 1, ""),
			arriveStep(3, 0, 2, ""), arriveStep(3, 0, 3, ""), postStep("c", 0, 3, "c=3:3 "),
		}, "[]"},
		{"tags and sources are numbered separately", []step{
			postStep("a", 0, 1, "a=1:1 "), postStep("b", 7, 1, "b=1:1 "), postStep("c", 0, 2, "c=2:1 "),
		}, "[]"},
		{"a receive from any source claims the first arrival", []step{
			arriveStep(2, 0, 1, ""), arriveStep(1, 0, 1, ""), postStep("a", 0, Any, "a=2:1 "),
			postStep("b", 0, Any, "b=1:1 "),
		}, "[]"},
		{"a receive from any source waits for a message", []step{
			postStep("a", 0, Any, ""), arriveStep(1, 5, 1, ""), arriveStep(1, 0, 1, "a=1:1 "),
		}, "[{1 5 1 0}]"},
		{"a source's messages are claimed by number, not by arrival", []step{
			postStep("a", 0, Any, ""), arriveStep(1, 0, 2, ""), arriveStep(2, 0, 3, ""),
			arriveStep(1, 0, 1, "a=1:1 "),
			postStep("b", 0, Any, "b=1:2 "),
		}, "[{2 0 3 0}]"},
		{"later receives of a tag wait for a receive from any source", []step{
			postStep("a", 0, Any, ""), postStep("b", 0, 1, ""), postStep("c", 4, 1, "c=1:1 "),
			arriveStep(1, 0, 1, "a=1:1 b=1:2 "), arriveStep(1, 0, 2, ""),
		}, "[]"},
		{"a message for the first receive also unblocks later receives", []step{
			postStep("a", 0, Any, ""), postStep("b", 0, 2, ""), postStep("c", 0, Any, ""),
			arriveStep(1, 0, 2, ""),
			arriveStep(1, 0, 1, "a=1:1 b=2:1 c=1:2 "),
		}, "[]"},
		{"a duplicate message is ignored", []step{
			arriveStep(1, 0, 1, ""), arriveStep(1, 0, 1, ""), postStep("a", 0, 1, "a=1:1 "),
			arriveStep(1, 0, 1, ""),
		}, "[]"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var m Matcher[string]
			for _, s := range row.steps {
				if got := formatClaims(s.apply(&m)); got != s.want {
					t.Fatalf("%s: got claims %q, want %q", s.event, got, s.want)
				}
			}
			if got := fmt.Sprint(m.Unclaimed()); got != row.unclaimed {
				t.Errorf("Unclaimed() = %s, want %s", got, row.unclaimed)
			}
		})
	}
}

// simpleMatcher keeps all events and scans all of them after each event.
type simpleMatcher struct {
	posts    []Claim[int] // Number holds the tag
	arrivals []Arrival
}

func (m *simpleMatcher) claims() (claims []Claim[int]) {
	claimedCounts := map[Key]uint64{}
	isBlocked := map[int]bool{}
	for _, p := range m.posts {
		tag := int(p.Number)
		if isBlocked[tag] {
			continue
		}
		source := p.Source
		if source == Any {
			i := slices.IndexFunc(m.arrivals, func(a Arrival) bool {
				return a.Tag == tag && a.Number == claimedCounts[Key{a.Source, tag}]+1
			})
			if i < 0 {
				isBlocked[tag] = true
				continue
			}
			source = m.arrivals[i].Source
		}
		claimedCounts[Key{source, tag}]++
		claims = append(claims, Claim[int]{p.Receive, source, claimedCounts[Key{source, tag}]})
	}
	return claims
}

// After each event, TestMatcherMatchesModel compares all claims made so far with the model's
// claims. It thus also checks that a later event never changes a claim.
func TestMatcherMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Matcher[int]
		var simple simpleMatcher
		claimsByReceive := map[int]Claim[int]{}
		sentCounts := map[Key]uint64{}
		for receive := range rapid.IntRange(1, 60).Draw(t, "events") {
			tag := rapid.IntRange(0, 2).Draw(t, "tag")
			var claims []Claim[int]
			if rapid.Bool().Draw(t, "post") {
				source := rapid.IntRange(Any, 2).Draw(t, "source")
				simple.posts = append(simple.posts, Claim[int]{receive, source, uint64(tag)})
				claims = m.Post(receive, tag, source, 0)
			} else {
				source := rapid.IntRange(0, 2).Draw(t, "sender")
				sentCounts[Key{source, tag}]++
				a := Arrival{Source: source, Tag: tag, Number: sentCounts[Key{source, tag}]}
				simple.arrivals = append(simple.arrivals, a)
				claims = m.Arrive(a)
			}
			for _, c := range claims {
				if _, isClaimed := claimsByReceive[c.Receive]; isClaimed {
					t.Fatalf("receive %d has two claims", c.Receive)
				}
				claimsByReceive[c.Receive] = c
			}
			want := simple.claims()
			if len(want) != len(claimsByReceive) {
				t.Fatalf("got claims %v, want %v", claimsByReceive, want)
			}
			for _, w := range want {
				if claimsByReceive[w.Receive] != w {
					t.Fatalf("got claim %v, want %v", claimsByReceive[w.Receive], w)
				}
			}
		}
	})
}

func BenchmarkPostAndArrive(b *testing.B) {
	var m Matcher[int]
	for number := uint64(1); b.Loop(); number++ {
		m.Post(0, 0, 1, 0)
		m.Arrive(Arrival{Source: 1, Number: number})
	}
}

// In TestAnySourceClaimsOnlyMessagesInItsSegment, rank 2 sends a message after a collective
// that rank 1 has not reached yet.
func TestAnySourceClaimsOnlyMessagesInItsSegment(t *testing.T) {
	var m Matcher[string]
	if claims := m.Post("first", 0, Any, 1); len(claims) != 0 {
		t.Fatalf("got claims %v before any arrival, want none", claims)
	}
	later := Arrival{Source: 2, Number: 1, Segment: 2}
	if claims := m.Arrive(later); len(claims) != 0 {
		t.Fatalf("got claims %v after a message in a later segment, want none", claims)
	}
	claims := m.Arrive(Arrival{Source: 1, Number: 1, Segment: 1})
	if got := formatClaims(claims); got != "first=1:1 " {
		t.Fatalf("got claims %q, want message 1 from rank 1", got)
	}
	if got := formatClaims(m.Post("second", 0, Any, 2)); got != "second=2:1 " {
		t.Fatalf("got claims %q, want message 1 from rank 2", got)
	}
}
