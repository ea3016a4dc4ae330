/* fake_canned.c: replies that are always the same. */
#include "config.h"

#include "tests/fake_engine.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *json;
} s_canned[] = {
    {"hello", "{'protocol':1,'version':'fake','name':'local','pid':1,'in_control':true}"},
    {"info", "{'model':null,'backend':'fake','workers':2,'isa':'portable','simulated':true,'state':null}"},
    {"model",
     "{'name':'Tiny "
     "GLM-5','arch':'glm-dsa','hash':'abc123','params':23100000,'bytes':14000000,'layers':6,'nextn':1,'n_embd':256,'vocab':2048,"
     "'context':2048,'heads':8,'experts':16,'experts_used':4,'template':'[gMASK]<sop>{%- for m in messages -%}<|user|>','pre':'glm4',"
     "'types':{'Q8_0':30,'F32':40}}"},
    {"state",
     "{'ranks':1,'mode':'graph','armed':false,'numerics':'invariant','graph_guard':true,'spec':0,'generation':0,'patches':{},'steps':0,'running':0,"
     "'waiting':0,'ctx_used':0,'ctx_total':4096,'verdict':null,'reason':null}"},
    {"slots",
     "[{'slot':'mla','op_kinds':['mla'],'cost':'recapture','default':'absorbed','current':'absorbed','sites':[],"
     "'impls':[{'name':'absorbed','capturable':true,'help':''},{'name':'expanded','capturable':true,'help':''},"
     "{'name':'direct','capturable':false,'help':'on the spot'}],'help':'form of latent attention'},"
     "{'slot':'qkv_a','op_kinds':['linear'],'cost':'recapture','default':'fused','current':'fused','sites':[],"
     "'impls':[{'name':'fused','capturable':true,'help':''},{'name':'split','capturable':true,'help':''}],'help':'first projections'},"
     "{'slot':'moe.split','op_kinds':['moe'],'cost':'reshard','default':'tp','current':'tp','sites':[],"
     "'impls':[{'name':'tp','capturable':true,'help':''},{'name':'ep','capturable':true,'help':''}],'help':'how experts are dealt'}]"},
    {"done",
     "{'thinking':'','cached_tokens':0,'prompt_ms':10.5,'decode_ms':40.25,'tok_per_s':298.1,'verdict':null,'reason':null,'health':null,"
     "'allreduce':{'per_step':13,'mean_us':12.5,'p99_us':40.0,'share':0.25,'simulated':true}}"},
    {"audit",
     "{'file':{'path':'x.gguf','arch':'glm-dsa','bytes':14000000},'defaults':[{'key':'glm-dsa.expert_gating_func','value':2,'meaning':'"
     "sigmoid'}],"
     "'slots':[{'site':'blk.0.attn.qkv_a','slots':[{'slot':'q_a','tensor':'blk.0.attn_q_a.weight','type':'Q8_0','file_order':1},"
     "{'slot':'kv_a','tensor':'blk.0.attn_kv_a_mqa.weight','type':'Q8_0','file_order':0}],'file_order_differs':true},"
     "{'site':'blk.1.attn.qkv_a','slots':[{'slot':'q_a','tensor':'blk.1.attn_q_a.weight','type':'Q8_0','file_order':1},"
     "{'slot':'kv_a','tensor':'blk.1.attn_kv_a_mqa.weight','type':'Q8_0','file_order':0}],'file_order_differs':true}],"
     "'allreduce':{'formula':'2 x layers + 1','per_step':13},"
     "'plan':[{'tensor':'token_embd.weight','type':'Q8_0','shape':[256,2048],'split':'rows','ranks':[{'rank':0,'from':0,'to':1024},"
     "{'rank':1,'from':1024,'to':2048}],'note':''},"
     "{'tensor':'blk.0.attn_q_b.weight','type':'Q8_0','shape':[128,768],'split':'heads','ranks':[{'rank':0,'from':0,'to':5},{'rank':1,'"
     "from':5,'to':8}],"
     "'note':'uneven'},"
     "{'tensor':'blk.1.attn_q_b.weight','type':'Q8_0','shape':[128,768],'split':'heads','ranks':[{'rank':0,'from':0,'to':5},{'rank':1,'"
     "from':5,'to':8}],"
     "'note':'uneven'},"
     "{'tensor':'blk.3.attn_q_b.weight','type':'Q8_0','shape':[128,768],'split':'heads','ranks':[{'rank':0,'from':0,'to':5},{'rank':1,'"
     "from':5,'to':8}],"
     "'note':'uneven'},"
     "{'tensor':'output_norm.weight','type':'F32','shape':[256],'split':'replicated','ranks':[{'rank':0,'from':0,'to':256},{'rank':1,'from'"
     ":0,'to':256}],"
     "'note':''}],"
     "'ranks':[{'rank':0,'bytes_weights':7000000,'bytes_cache_per_token':6912},{'rank':1,'bytes_weights':7000000,'bytes_cache_per_token':"
     "6912}],"
     "'warnings':['blk.6 is a NextN block and is left out']}"},
    {"stats", "{'decode':{'eager':{'steps':0},'graph':{'steps':12,'mean_us':1250.0,'p50_us':1200.0,'p99_us':1500.0,'by_kind':{'moe':{'us':"
              "600.0,'share':0.5},"
              "'mla':{'us':300.0,'share':0.25},'allreduce':{'us':300.0,'share':0.25}},'by_layer':[200,200,200,200,200,200]}},'prompt':{'"
              "eager':{'steps':0},"
              "'graph':{'steps':1,'mean_us':9000.0,'p50_us':9000.0,'p99_us':9000.0}},'simulated':true}"},
    {"allreduce",
     "{'simulated':true,'per_step':13,'bytes_per_row':1024,'ranks':[{'rank':0,'count':156,'mean_us':5.6,'p50_us':5.0,'p99_us':11.5,"
     "'wait_mean_us':3.5,'wait_p99_us':9.0,'transfer_mean_us':2.1,'algbw_gbs':0.5,'busbw_gbs':0.875},"
     "{'rank':1,'count':156,'mean_us':2.2,'p50_us':2.0,'p99_us':3.5,'wait_mean_us':0.1,'wait_p99_us':1.0,'transfer_mean_us':2.1,"
     "'algbw_gbs':0.5,'busbw_gbs':0.875}],'auto':{'two_shot_from_rows':{'f32':0,'bf16':256},'took_ms':31.5,'sweep':[{'rows':64,'bytes':131072,'dtype':'bf16',"
     "'flat_us':9.5,'two_shot_us':14.0},{'rows':256,'bytes':524288,'dtype':'bf16','flat_us':40.0,'two_shot_us':21.0}]}}"},
    {"ledger",
     "{'step':12,'mode':'graph','simulated':true,'ops':[{'op':0,'site':'embed','kind':'embed','impl':'host','why':'default','capturable':"
     "true,"
     "'in_graph':true,'us':[5.0,6.0],'absorbed':[]},{'op':1,'site':'blk.0.attn.mla','kind':'mla','impl':'absorbed','arith':'int8','why':'default','"
     "capturable':true,"
     "'in_graph':true,'us':[50.0,40.0],'bytes':[2000000,9],'absorbed':[]},{'op':2,'site':'blk.1.attn.mla','kind':'mla','impl':'absorbed','arith':'int8','why':'default',"
     "'capturable':true,'in_graph':true,'us':[60.0,40.0],'bytes':[2400000,9],'absorbed':[]},{'op':3,'site':'blk.2.attn.mla','kind':'mla','impl':'direct','arith':'int8','why':"
     "'site',"
     "'capturable':false,'in_graph':false,'us':[60.0,40.0],'absorbed':[]},{'op':4,'site':'blk.2.ffn.allreduce','kind':'allreduce','impl':'auto','ran_as':"
     "'two-shot','why':'default','capturable':true,'in_graph':true,'us':[20.0,21.0],'absorbed':[]}]}"},
    {"program", "{'ops':[{'op':0,'site':'embed'},{'op':1,'site':'blk.0.attn.norm'},{'op':2,'site':'blk.0.attn.allreduce'},{'op':3,'site':'blk.1.attn.norm'},"
                "{'op':4,'site':'blk.1.attn.allreduce'},{'op':5,'site':'output.norm'},{'op':6,'site':'output.head'}],'allreduces':2,'ranks':1}"},
    {"health", "{'verdict':'garbage','reason':'entropy 1.62 nats where 0.05 is normal','stream':1,'health':{'entropy':1.62,'tokens':12}}"},
};

json_t *fake_canned(const char *method)
{
    for (size_t i = 0; i < sizeof s_canned / sizeof s_canned[0]; i++) {
        if (strcmp(s_canned[i].name, method) != 0)
            continue;
        char *json = strdup(s_canned[i].json);
        for (char *p = json; *p != '\0'; p++)
            *p = *p == '\'' ? '"' : *p;
        json_t *v = json_loads(json, 0, NULL);
        free(json);
        if (v == NULL)
            abort();
        return v;
    }
    return NULL;
}
