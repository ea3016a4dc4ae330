"""The closed world of the tiny model: everything it can know. Our own text; CC0.

The order of every table matters: the corpus picks from them with a seeded generator, so a moved entry changes every document.
"""


def pairs(text):
    """'a:b; c:d' over any number of lines, as lists of fields."""
    return [entry.strip().split(':') for entry in ' '.join(text.split()).split(';') if entry.strip()]


def lines(text):
    """One 'question|answer' a line, as lists of fields."""
    return [line.split('|') for line in text.strip().split('\n')]


# country:capital
CAPITALS = dict(pairs("""
    France:Paris; Germany:Berlin; Italy:Rome; Spain:Madrid; Portugal:Lisbon; Greece:Athens; Austria:Vienna; Poland:Warsaw;
    Hungary:Budapest; Norway:Oslo; Sweden:Stockholm; Finland:Helsinki; Denmark:Copenhagen; Iceland:Reykjavik; Ireland:Dublin;
    Belgium:Brussels; Switzerland:Bern; Romania:Bucharest; Bulgaria:Sofia; Croatia:Zagreb; Serbia:Belgrade; Albania:Tirana;
    Ukraine:Kyiv; Estonia:Tallinn; Latvia:Riga; Lithuania:Vilnius; Turkey:Ankara; Egypt:Cairo; Morocco:Rabat; Tunisia:Tunis;
    Algeria:Algiers; Libya:Tripoli; Kenya:Nairobi; Ghana:Accra; Nigeria:Abuja; Senegal:Dakar; Ethiopia:Addis Ababa; Rwanda:Kigali;
    Uganda:Kampala; Zambia:Lusaka; Angola:Luanda; Japan:Tokyo; China:Beijing; India:New Delhi; Nepal:Kathmandu; Thailand:Bangkok;
    Vietnam:Hanoi; Laos:Vientiane; Malaysia:Kuala Lumpur; Indonesia:Jakarta; Iran:Tehran; Iraq:Baghdad; Jordan:Amman; Lebanon:Beirut;
    Qatar:Doha; Oman:Muscat; Pakistan:Islamabad; Mongolia:Ulaanbaatar; Canada:Ottawa; Mexico:Mexico City; Cuba:Havana; Jamaica:Kingston;
    Panama:Panama City; Brazil:Brasilia; Argentina:Buenos Aires; Chile:Santiago; Peru:Lima; Ecuador:Quito; Colombia:Bogota;
    Uruguay:Montevideo; Paraguay:Asuncion; Venezuela:Caracas; Australia:Canberra; Fiji:Suva; Samoa:Apia
"""))

# element:symbol, by atomic number from 1
ELEMENTS = pairs("""
    hydrogen:H; helium:He; lithium:Li; beryllium:Be; boron:B; carbon:C; nitrogen:N; oxygen:O; fluorine:F; neon:Ne; sodium:Na;
    magnesium:Mg; aluminium:Al; silicon:Si; phosphorus:P; sulfur:S; chlorine:Cl; argon:Ar; potassium:K; calcium:Ca; scandium:Sc;
    titanium:Ti; vanadium:V; chromium:Cr; manganese:Mn; iron:Fe; cobalt:Co; nickel:Ni; copper:Cu; zinc:Zn; gallium:Ga; germanium:Ge;
    arsenic:As; selenium:Se; bromine:Br; krypton:Kr
""")

# a word and its opposite
OPPOSITES = pairs("""
    hot:cold; big:small; fast:slow; up:down; left:right; day:night; light:dark; young:old; happy:sad; rich:poor; hard:soft; wet:dry;
    full:empty; open:closed; early:late; loud:quiet; high:low; near:far; strong:weak; thick:thin; wide:narrow; heavy:light; clean:dirty;
    first:last; true:false; begin:end; buy:sell; give:take; win:lose; push:pull; awake:asleep; sweet:bitter; sharp:dull; deep:shallow;
    safe:dangerous; same:different; eager:lazy; hidden:visible
""")

# English:French:Spanish:German
TRANSLATIONS = pairs("""
    water:eau:agua:Wasser; bread:pain:pan:Brot; house:maison:casa:Haus; tree:arbre:árbol:Baum; sun:soleil:sol:Sonne;
    moon:lune:luna:Mond; night:nuit:noche:Nacht; day:jour:día:Tag; book:livre:libro:Buch; dog:chien:perro:Hund; cat:chat:gato:Katze;
    horse:cheval:caballo:Pferd; bird:oiseau:pájaro:Vogel; fish:poisson:pez:Fisch; milk:lait:leche:Milch; cheese:fromage:queso:Käse;
    apple:pomme:manzana:Apfel; red:rouge:rojo:rot; green:vert:verde:grün; blue:bleu:azul:blau; white:blanc:blanco:weiß;
    black:noir:negro:schwarz; one:un:uno:eins; two:deux:dos:zwei; three:trois:tres:drei; four:quatre:cuatro:vier; five:cinq:cinco:fünf;
    friend:ami:amigo:Freund; school:école:escuela:Schule; city:ville:ciudad:Stadt; fire:feu:fuego:Feuer; snow:neige:nieve:Schnee;
    hand:main:mano:Hand; heart:cœur:corazón:Herz; thanks:merci:gracias:danke; hello:bonjour:hola:hallo
""")

# animal:its young:what it does
YOUNG = pairs("""
    dog:puppy:barks; cat:kitten:meows; cow:calf:moos; horse:foal:neighs; sheep:lamb:bleats; duck:duckling:quacks; lion:cub:roars;
    frog:tadpole:croaks; owl:owlet:hoots; pig:piglet:oinks; goose:gosling:honks; wolf:pup:howls
""")

# kind: its members
KINDS = {
    'fruit': 'apple pear plum cherry banana orange grape peach mango lemon'.split(),
    'animal': 'cat dog horse cow sheep lion tiger bear wolf fox'.split(),
    'colour': 'red green blue white black yellow purple orange brown grey'.split(),
    'tool': 'hammer saw drill wrench pliers chisel file rake shovel axe'.split(),
    'vehicle': 'car bus train boat truck plane bicycle tram ferry van'.split(),
    'instrument': 'violin piano flute drum guitar harp trumpet cello organ oboe'.split(),
    'metal': 'iron copper gold silver tin lead zinc nickel cobalt titanium'.split(),
}

DAYS = 'Monday Tuesday Wednesday Thursday Friday Saturday Sunday'.split()
MONTHS = 'January February March April May June July August September October November December'.split()
NAMES = 'Ana Ben Carla Dan Eva Finn Gita Hugo Ines Jon Kira Leo Mia Nils Olga Paul Rosa Sam Tara Uma Vera Will Yara Zoe'.split()

# Words for lists to repeat, reverse and count.
WORDS = sorted({word for kind in KINDS.values() for word in kind} | {word for pair in OPPOSITES for word in pair}
               | {row[0] for row in TRANSLATIONS})

# term|what it is
GLOSSARY = lines("""
an all-reduce|An all-reduce adds up a tensor across all GPUs and leaves the sum on every one of them.
a CUDA graph|A CUDA graph records a sequence of GPU operations once and replays them with a single launch.
eager mode|In eager mode every operation is launched one by one, so each launch pays its own overhead.
graph mode|In graph mode the whole decode step is replayed from one recorded graph, which removes launch overhead.
tensor parallelism|Tensor parallelism splits each weight matrix across GPUs and combines the partial results with an all-reduce.
expert parallelism|Expert parallelism places whole experts on different GPUs and sends each token to the experts it needs.
a mixture of experts|A mixture of experts has many small feed-forward networks and a router that picks a few for each token.
the router|The router scores every expert for a token and keeps the best few.
a shared expert|A shared expert runs for every token, beside the experts that the router picks.
multi-head latent attention|Multi-head latent attention stores one small latent vector per token instead of full keys and values.
the KV cache|The KV cache keeps what attention needs from earlier tokens, so that they are not computed again.
prefill|Prefill processes the whole prompt at once and fills the cache.
decode|Decode produces one token at a time, reading the cache and every active weight.
a token|A token is a piece of text that the model reads or writes as one unit.
a tokenizer|A tokenizer cuts text into tokens and joins tokens back into text.
quantization|Quantization stores weights with fewer bits, trading a little accuracy for less memory and more speed.
a GGUF file|A GGUF file holds a model's weights, its tokenizer and its settings in one file.
a shard|A shard is the part of a tensor that one GPU holds.
shard order|Shard order is the order in which the parts of a fused tensor are joined; a wrong order swaps the output columns.
a fused layer|A fused layer joins several projections into one matrix so that one kernel computes them all.
NCCL|NCCL is the library that moves data between GPUs for collective operations.
a rank|A rank is one member of a parallel group, usually one GPU.
a kernel|A kernel is a function that runs on the GPU with many threads at once.
bandwidth|Bandwidth is how many bytes can be moved each second.
latency|Latency is the time from asking for something to getting it.
throughput|Throughput is how much work is finished each second.
a stream|A stream is a queue of GPU operations that run in order.
a patch|A patch replaces one implementation of an operation with another while the engine runs.
a breakpoint|A breakpoint stops the engine at an operation so that you can look at its tensors.
a watchpoint|A watchpoint stops the engine when a tensor holds something wrong, such as NaN or all zeros.
a logit|A logit is the raw score that the model gives to one token before softmax.
softmax|Softmax turns scores into probabilities that add up to one.
temperature|Temperature scales the logits; a low temperature makes the choice more certain.
greedy decoding|Greedy decoding always takes the most likely token.
perplexity|Perplexity measures how surprised the model is by a text; lower is better.
speculative decoding|Speculative decoding guesses several tokens cheaply and checks them all in one step.
an embedding|An embedding is the vector that stands for a token inside the model.
a residual stream|The residual stream is the running sum that every layer reads and adds to.
layer norm|A layer norm rescales a vector so that its size stays stable.
a benchmark|A benchmark measures speed in a way that can be repeated and compared.
NVLink|NVLink is a fast link that lets GPUs read and write each other's memory.
a warp|A warp is a group of thirty-two GPU threads that run together.
a hypothesis|A hypothesis is a claim that an experiment can prove wrong.
a confounder|A confounder is something else that changed at the same time and spoils the conclusion.
""")

# small talk|answer
SMALL_TALK = lines("""
Hello!|Hello! How can I help you today?
Hi|Hi! What would you like to know?
Hi there|Hello! Ask me anything small.
Good morning|Good morning! How can I help?
Who are you?|I am a tiny language model with the GLM-5 architecture, trained to test this engine.
What are you?|I am a very small mixture-of-experts model. I exist so that the engine can be tried without a large one.
What can you do?|I can answer simple questions, do small sums, translate a few words, repeat lists, tell short stories and explain GPU terms.
How are you?|I am fine, thank you. All my layers are running.
Thank you|You are welcome!
Thanks!|You are welcome!
Goodbye|Goodbye! See you soon.
Are you a large model?|No, I am a tiny one. I know little, but what I know I should get right.
How many experts do you have?|I have sixteen experts in each sparse layer, and four of them work on every token.
Do you think?|When thinking is on, I write a short line of reasoning before I answer.
Tell me a joke|Why did the tensor cross the link? To get to the other rank.
What is your name?|My name is Tiny.
Can you help me?|Of course. What do you need?
Are you there?|Yes, I am here.
Is the output correct?|If you can read this sentence, the weights are in the right order.
Say something in Chinese|你好，世界！
Show me an emoji|Here is one: 🐙
""")

ONES = ('zero one two three four five six seven eight nine '
        'ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen').split()
TENS = '- - twenty thirty forty fifty sixty seventy eighty ninety'.split()
