// Command idiom lists the words and pairs of words that distinguish the comments of one tree of Go
// code from other trees.
//
//	go run ./internal/house/idiom [-n 50] [-tests] FOLDER OTHER...
//
// FOLDER is the tree to judge. Each OTHER is a checkout of a well-known project. The columns of the
// output are:
//
//   - a score, which is high for words that are typical of FOLDER
//   - the number of occurrences in FOLDER
//   - the number of occurrences in all OTHER trees
//   - the word or pair
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

func main() {
	wordCount := flag.Int("n", 50, "number of words and pairs")
	includeTests := flag.Bool("tests", false, "read test files too")
	flag.Parse()
	if flag.NArg() < 2 {
		flag.Usage()
		os.Exit(2)
	}

	folder := flag.Arg(0)
	others := flag.Args()[1:]
	err := run(os.Stdout, *wordCount, *includeTests, folder, others)
	if err != nil {
		fmt.Fprintln(os.Stderr, "idiom:", err)
		os.Exit(1)
	}
}

// run writes a line for each of the wordCount most typical words and pairs of folder.
func run(out io.Writer, wordCount int, includeTests bool, folder string, others []string) error {
	ours := counts{}
	if err := ours.read(os.DirFS(folder), includeTests); err != nil {
		return err
	}

	theirs := counts{}
	for _, other := range others {
		if err := theirs.read(os.DirFS(other), includeTests); err != nil {
			return err
		}
	}

	for _, w := range compare(ours, theirs, wordCount) {
		fmt.Fprintf(out, "%7.1f %6d %6d  %s\n", w.score, w.ours, w.theirs, w.text)
	}

	return nil
}

// counts holds the number of occurrences of each word and of each pair of adjacent words.
type counts map[string]int

// wordPattern matches words of comments. It does not match names such as "WalkDir" or "x2", which
// have a capital or a digit after the first letter.
var wordPattern = regexp.MustCompile(`\b[A-Za-z][a-z]*(?:'[a-z]+)?\b`)

// read adds the comments of all Go files in a tree.
func (c counts) read(tree fs.FS, includeTests bool) error {
	return fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		if entry.IsDir() {
			isHidden := strings.HasPrefix(entry.Name(), ".") && name != "."
			if isHidden || entry.Name() == "testdata" {
				return fs.SkipDir
			}

			return nil
		}

		isTest := strings.HasSuffix(name, "_test.go")
		if path.Ext(name) != ".go" || (isTest && !includeTests) {
			return nil
		}

		source, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}

		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments)
		if err != nil {
			return err
		}

		for _, group := range file.Comments {
			c.add(group.Text())
		}

		return nil
	})
}

// add counts the words of a text. It also counts pairs of adjacent words, unless punctuation
// separates them.
func (c counts) add(text string) {
	isPunctuation := func(r rune) bool { return strings.ContainsRune(".,:;()[]`\"", r) }
	for part := range strings.FieldsFuncSeq(text, isPunctuation) {
		previous := ""
		for _, match := range wordPattern.FindAllString(part, -1) {
			word := strings.ToLower(match)
			c[word]++
			if previous != "" {
				c[previous+" "+word]++
			}

			previous = word
		}
	}
}

// scoredWord is a word or a pair of words.
type scoredWord struct {
	text         string
	score        float64 // see compare
	ours, theirs int     // numbers of occurrences
}

// compare returns the wordCount words that are most typical of ours, with the highest score first.
//
// The odds of a word are the number of its occurrences, divided by that of all other words. Their
// ratio says how much more frequent the word is in ours than in theirs. The score is the logarithm
// of the ratio, divided by its standard deviation, so that rare words get no high score by chance.
// Half an occurrence is added to each count, because the odds in theirs must not be 0.
func compare(ours, theirs counts, wordCount int) []scoredWord {
	var all []scoredWord
	ourTotal := ours.total()
	theirTotal := theirs.total()
	for text, count := range ours {
		ourCount := float64(count) + 0.5
		theirCount := float64(theirs[text]) + 0.5
		ourOdds := ourCount / (ourTotal - ourCount)
		theirOdds := theirCount / (theirTotal - theirCount)
		logOddsRatio := math.Log(ourOdds) - math.Log(theirOdds)
		deviation := math.Sqrt(1/ourCount + 1/theirCount)
		all = append(all, scoredWord{
			text:   text,
			score:  logOddsRatio / deviation,
			ours:   count,
			theirs: theirs[text],
		})
	}

	slices.SortFunc(all, func(a, b scoredWord) int {
		return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.text, b.text))
	})
	return all[:min(wordCount, len(all))]
}

// total returns the sum of all counts plus 1. Without the 1, it could be smaller than a count to
// which compare has added a half.
func (c counts) total() float64 {
	sum := 0
	for _, count := range c {
		sum += count
	}

	return float64(sum) + 1
}
