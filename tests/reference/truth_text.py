"""The texts that the truth prompts are cut from: own prose, code, data and chats, made deterministically.

make_documents() gives {name: text} for plain documents; CHATS are questions that make_truth.py wraps in
the model's chat format. Changing a word here changes truth_smollm2.json: run make_truth.py again.
"""

from write_tiny_model import GOLDEN, MASK

PARAGRAPHS = (
    """The harbour at Velm wakes before the light does. At four the fish buyers come down the hill with
their lanterns swinging, and by half past the first boats are already nudging the quay. Nobody talks
much. A price is a raised finger, a refusal is a look at the sea. My grandmother, who kept the scales
for thirty-one years, used to say that you could learn more about a man from how he lifted a crate than
from anything he told you in the tavern.""",
    """A glacier moves because ice, under enough weight, stops behaving like a stone and starts behaving like
very slow honey. Snow falls on the upper part, is pressed into firn and then into blue ice, and flows
downhill until it reaches air warm enough to melt it. The line where gain and loss are equal is called the
equilibrium line. When it climbs, year after year, the tongue of the glacier retreats, and the lake that it
leaves behind may be held back by nothing more than a ridge of loose gravel.""",
    """To bake a plain loaf you need flour, water, salt and time. Mix 500 g of flour with 350 g of water and let
it rest for half an hour; this is long enough for the dough to become smooth without any work from you.
Add 10 g of salt and a spoonful of ripe starter, fold the dough over itself four times, and leave it until
it has grown by half. Shape it, let it rise again in a basket, and bake it in a covered pot at 240 degrees
for twenty-five minutes, then uncovered until the crust is the colour of chestnuts.""",
    """The committee met on Tuesday and disagreed about everything except the date of the next meeting. The
treasurer wanted to repair the roof first, since water was coming in over the archive. The secretary
replied that an archive nobody had opened since 1974 could surely stand a little damp, and that the
heating was more urgent. The chairman, who had slept badly, proposed to ask an architect. It was noted
that the last architect had cost more than the roof.""",
    """What is a proof? In school it looks like a ritual: given, to show, therefore. But a proof is only an
argument that leaves no honest way out. Euclid shows that there is no largest prime by asking you to hand
him a finished list; he multiplies all of its members together, adds one, and points at a divisor that
your list must have missed. He does not find the new prime for you. He only makes it impossible for you
to say that there is none.""",
    """Dear Tomas, the parcel came on Friday, and I have to confess that I opened it before your birthday.
The compass is beautiful. I took it up to the old radio mast and compared it with the one in the car, and
they disagree by nine degrees, which says more about the car than about the compass, I think. Your sister
sends her love and asks whether you have found the blue notebook. She is sure that she left it with you
in March, under the maps, next to the tin with the foreign coins.""",
    """Paged memory is an old idea. A program sees one long row of addresses; the machine keeps the contents in
frames of equal size, scattered wherever there was room, and a table says which frame holds which part of
the row. Nothing has to move when the row grows: one takes a free frame and writes its number at the end
of the table. Two rows may share a frame as long as neither of them writes to it, and the first write
makes a private copy. The price is one more look-up on each access, and the gain is that no memory is lost
to gaps that are too small to use.""",
    """Nobody had wound the clock in the stairwell since the caretaker left, yet it went on telling the right
time twice a day, as stopped clocks do, and the children of the third floor made a game of being there when
it happened. At ten past seven in the evening they would sit on the steps in a row, count backwards from
twenty, and cheer. Once, in the winter when the power failed, the eldest swore that she had seen the minute
hand move on by itself.""",
    """Bees do not vote, but they do decide. When a swarm hangs in a tree, a few hundred scouts fly out to look
for a hollow. Each one that finds a good place comes back and dances for it, and the better the place, the
longer the dance. Others go and look for themselves before they dance too. Support for poor sites dies
away, support for good ones grows, and once enough scouts meet at the same entrance, they return and
tell the swarm to warm its wings. The whole affair takes a day or two and is seldom wrong.""",
    """Minutes of the test: the bridge was loaded in steps of two tonnes. Up to 18 t the deflection at midspan
followed the calculation within four per cent. At 20 t the gauge on the north girder drifted by 0.3 mm over
ten minutes and then stood still. We unloaded to 10 t, waited, and found that 0.1 mm of it remained.
Conclusion: the bearing had settled, the girder had not yielded. The load limit of 16 t can be posted, and
the bearing should be looked at again in spring.""",
    """In the valley they tell of a miller who bought a second millstone before he had paid for the first. When
the river ran low he said that it would rise; when it rose he said that it would fall. In the end he spent
so many evenings explaining the river to his neighbours that they came to believe that he was the one who
moved it, and they paid him to stop. He bought a third millstone with the money.""",
    """Sleep is not the absence of being awake. During the deep part of the night the brain replays what the day
has left in it, at several times the speed and often backwards, and while it does so the connections that
were used together grow stronger and the rest grow weaker. A night without it does not merely make you
tired; it leaves yesterday unfiled. People who learn a finger exercise in the evening play it better in
the morning, without having touched a key in between.""",
    """The train from Orlec to the coast takes six hours and forty minutes if nothing happens, and something
always happens. This time it was a cow. The driver sounded the horn, the cow considered the matter, and
two hundred passengers leaned out of the windows to give advice in four languages. A boy in a red cap
climbed down, took the animal by the ear as one would take a small cousin, and led her off the track. When
he came back the conductor punched his ticket a second time, as a mark of respect.""",
    """A budget is a forecast that has been promised to somebody. That is why it fails in two different ways: the
world turns out otherwise than the forecast, or the promise was made by a person who could not keep it. The
remedies differ as well. Against the first, keep a reserve and look at the figures every month. Against the
second, no reserve is ever large enough; the promise has to move to where the decision is made.""",
)

SNIPPETS = (
    """def moving_average(values, width):
    \"\"\"Yields the mean of each window of `width` neighbours.\"\"\"
    if width < 1:
        raise ValueError("width must be at least 1")
    total = 0.0
    for i, value in enumerate(values):
        total += value
        if i >= width:
            total -= values[i - width]
        if i >= width - 1:
            yield total / width
""",
    """#include <cstdio>

// Prints the prime factors of n, smallest first.
void PrintFactors(unsigned long n) {
  for (unsigned long p = 2; p * p <= n; ++p) {
    while (n % p == 0) {
      std::printf("%lu ", p);
      n /= p;
    }
  }
  if (n > 1) std::printf("%lu", n);
  std::printf("\\n");
}
""",
    """SELECT c.name, COUNT(*) AS orders, SUM(o.amount) AS total
FROM customers AS c
JOIN orders AS o ON o.customer_id = c.id
WHERE o.placed_at >= '2024-01-01'
GROUP BY c.name
HAVING SUM(o.amount) > 1000
ORDER BY total DESC;
""",
    """server:
  listen: 127.0.0.1:8080
  workers: 4
  log:
    level: info
    format: json
routes:
  - path: /health
    method: GET
  - path: /items/{id}
    method: DELETE
""",
    """fn longest_run(bytes: &[u8]) -> usize {
    let mut best = 0;
    let mut run = 0;
    let mut last = None;
    for &b in bytes {
        run = if Some(b) == last { run + 1 } else { 1 };
        last = Some(b);
        best = best.max(run);
    }
    best
}
""",
    """<table>
  <tr><th>Month</th><th>Rain (mm)</th></tr>
  <tr><td>January</td><td>61.5</td></tr>
  <tr><td>February</td><td>48.0</td></tr>
</table>
""",
)

OTHER_LANGUAGES = (
    "Der alte Garten lag hinter dem Haus, und im Frühling blühten dort zuerst die Schlüsselblumen. "
    "Niemand wusste mehr, wer sie gepflanzt hatte.",
    "Le boulanger ouvre à six heures; à sept heures, il ne reste déjà plus de croissants. "
    "« Revenez demain », dit-il en souriant.",
    "El río baja crecido desde la sierra, y los niños tiran piedras desde el puente viejo.",
    "Il treno parte alle 9:45 dal binario 3. Chi arriva tardi aspetta fino alle undici.",
    "Зимой озеро замерзает, и через него идёт прямая дорога в соседнюю деревню.",
    "窓の外では雨が降っていた。彼女は手紙をもう一度読み、静かに引き出しにしまった。",
    "Naïve café façade: 3 × 4 = 12, 7 ÷ 2 = 3.5, π ≈ 3.14159, −5 °C, 20 €, ½ cup 🙂🚲.",
    "Η θάλασσα ήταν ήρεμη και ο ουρανός καθαρός.",
)

SLOTS = {
    "person": "Mara|old Benedikt|the surveyor|Ilse Brandt|my uncle|the pharmacist|Captain Roe|a young clerk|"
    "Dr. Amsel|the night porter|Jonas|the widow Karlin|her brother|Professor Lind|the ferryman",
    "place": "the railway yard|a village above Orlec|the reading room|the north quay|an empty cinema|the mill|"
    "the botanical garden|the border post|a kitchen in Velm|the old observatory|the salt works|the attic",
    "thing": "a brass key|the unsigned letter|three jars of honey|a map with one corner missing|the green ledger|"
    "a broken barometer|the spare lantern|a photograph of the bridge|a box of seeds|the second violin",
    "time": "On Thursday evening|Shortly before noon|In the winter of 1962|The next morning|Years later|"
    "While the others slept|After the long rain|At the end of the month|Before the bells had stopped",
    "feeling": "relieved|suspicious|tired beyond words|oddly cheerful|ashamed|calm|more curious than afraid|proud",
    "adj": "narrow|silent|crooked|brightly painted|half finished|expensive|borrowed|forgotten|heavy|unusual",
    "verb": "counted|hid|repaired|described|photographed|weighed|sold|buried|returned|translated|measured",
    "field": "chemistry|navigation|bookkeeping|astronomy|medicine|law|carpentry|music|geology|statistics",
    "reason": "the road was closed|nobody else had offered|the numbers did not add up|it was the law|"
    "he had promised|the lamp had gone out|there was no other witness|the price had doubled overnight",
    "animal": "goat|heron|sheepdog|carp|raven|mule|hedgehog|barn owl",
}

SENTENCES = (
    "{time}, {person} came to {place} with {thing}, and {person} was the only one who noticed.",
    "{person} had {verb} {thing} so often that it no longer seemed {adj}.",
    '"If that is {thing}," said {person}, "then I would like to know what you {verb} last week."',
    "There were {n} steps from the door to {place}, and {person} knew each of them by its sound.",
    "Nobody in {place} understood {field}, but everybody had an opinion about it.",
    "It was {adj}, it cost {n} crowns, and it was exactly what {person} had been looking for.",
    "{time} a {animal} got into {place}; it took {n} people and {thing} to get it out again.",
    "Since {reason}, {person} waited at {place} until the light was gone.",
    "The first rule of {field}, as {person} liked to repeat, is that you write down what you have {verb}.",
    '"Why {n}?" asked {person}. "Because {reason}," came the answer, and that was the end of it.',
    "By then {person} felt {feeling}, which was unusual, for {reason}.",
    "One could say that {field} began here, in {place}, with {thing} and a {adj} table.",
    "{person} never spoke of {place} again, except once, {n} years later, to {person}.",
    "Of all the {adj} objects in {place}, {thing} was the only one that anybody had {verb}.",
    '"You may keep {thing}," {person} wrote, "but tell {person} that {reason}."',
    "What {person} remembered best was the {animal} on the roof and how {feeling} everybody had been.",
    "{time}, when {reason}, the {animal} lay down in front of {place} and would not move.",
    "A {adj} window, a {adj} door, and between them {thing}: that was all that {person} had {verb}.",
)

CHATS = (
    "Why is the sky blue?",
    "Give me three tips for sleeping better.",
    "What is the capital of France, and what is it known for?",
    "Write a short poem about a lighthouse.",
    "Explain to a child how rain is made.",
    "Write a Python function that checks whether a word is a palindrome.",
    "What are the main differences between a lake and a river?",
    "Summarise in one sentence: The committee met on Tuesday and disagreed about everything except the "
    "date of the next meeting.",
    "List five animals that live in the desert.",
    "If a train travels 120 km in 1.5 hours, what is its average speed?",
)


class Draw:
    """A small seeded random stream (splitmix64), the same in every version of Python."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state + GOLDEN) & MASK
        x = self.state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return (x ^ (x >> 31)) % bound

    def one_of(self, items):
        return items[self.below(len(items))]


def one_line(text):
    return " ".join(text.split())


def fill(template, draw):
    """Replaces each {slot}, one after another, by a drawn phrase."""
    text = template
    while "{" in text:
        start, end = text.index("{"), text.index("}")
        slot = text[start + 1 : end]
        phrase = str(2 + draw.below(300)) if slot == "n" else draw.one_of(SLOTS[slot].split("|"))
        text = text[:start] + phrase + text[end + 1 :]
    return text[0].upper() + text[1:]


def invented_paragraph(draw):
    return " ".join(fill(draw.one_of(SENTENCES), draw) for _ in range(4 + draw.below(4)))


def prose(paragraphs):
    """The written paragraphs, one in three, among invented ones."""
    draw, parts, written = Draw(11), [], [one_line(p) for p in PARAGRAPHS]
    for i in range(paragraphs):
        if i % 3 == 0 and i // 3 < len(written):
            parts.append(written[i // 3])
        else:
            parts.append(invented_paragraph(draw))
        if i % 9 == 8:
            parts.append(f"Chapter {i // 9 + 2}")
    return "\n\n".join(parts)


def log_line(draw, n):
    level = draw.one_of(("INFO", "INFO", "INFO", "WARN", "ERROR"))
    module = draw.one_of(("store", "router", "billing", "mailer", "scheduler"))
    event = draw.one_of(
        (
            f"request {draw.below(90000)} finished in {draw.below(900)} ms",
            f"retry {1 + draw.below(5)} of 5 for order {draw.below(70000)}",
            f"connection from 10.0.{draw.below(256)}.{draw.below(256)} closed by peer",
            f"cache holds {draw.below(5000)} entries, {draw.below(100)} % hits",
            f"user {draw.one_of(('mara', 'jonas', 'ilse', 'tomas'))} changed role to "
            f"{draw.one_of(('reader', 'editor', 'owner'))}",
        )
    )
    return f"2024-03-{1 + n // 40:02d} {8 + n // 60 % 12:02d}:{n % 60:02d}:{draw.below(60):02d} {level} {module}: {event}"


def data(sections):
    """Code, logs, tables, lists and JSON in turns."""
    draw, parts, line = Draw(23), [], 0
    for i in range(sections):
        kind = i % 5
        if kind == 0:
            parts.append("```\n" + SNIPPETS[i // 5 % len(SNIPPETS)] + "```")
        elif kind == 1:
            parts.append("\n".join(log_line(draw, line + k) for k in range(9)))
            line += 9
        elif kind == 2:
            rows = [
                f"{draw.one_of(SLOTS['animal'].split('|'))},{draw.below(100)},{draw.below(10000) / 100:.2f},"
                f"{draw.one_of(('yes', 'no'))}"
                for _ in range(8)
            ]
            parts.append("animal,count,weight_kg,tagged\n" + "\n".join(rows))
        elif kind == 3:
            items = [
                f"{k + 1}. {fill('{verb} {thing} at {place}', draw)}" for k in range(5 + i % 3)
            ]
            parts.append("Things that were done:\n" + "\n".join(items))
        else:
            fields = ", ".join(
                f'"{draw.one_of(SLOTS["field"].split("|"))}": {draw.below(1000)}' for _ in range(5)
            )
            parts.append(f'{{"id": {draw.below(100000)}, "scores": {{{fields}}}, "valid": true}}')
    return "\n\n".join(parts)


def mixed(sections):
    """Short pieces of everything, other languages among them."""
    draw, parts = Draw(37), []
    for i in range(sections):
        parts.append(OTHER_LANGUAGES[i % len(OTHER_LANGUAGES)])
        parts.append(invented_paragraph(draw))
        if i % 3 == 1:
            parts.append(
                f"## Note {i}\n\n- "
                + "\n- ".join(fill("{person}: {reason}", draw) for _ in range(3))
            )
        if i % 4 == 2:
            parts.append(SNIPPETS[(i // 4 + 1) % len(SNIPPETS)].rstrip())
    return "\n\n".join(parts)


def make_documents():
    return {"prose": prose(84), "data": data(44), "mixed": mixed(30)}
